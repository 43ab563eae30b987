"""What the last decode gave: logits and hidden states of its outputs, where they lie or gathered
of several parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llamapy.backend.backend import view
from llamapy.engine import Execution
from llamapy.graph import Tensor

Floats = np.ndarray[Any, np.dtype[np.float32]]
Reader = Callable[[], Floats]


class Results:
    """logits  float32 [n_outputs, n_vocab]
    hidden  float32 [n_outputs, n_embd], no rows if they are not kept

    A batch in one part is read in the memory that it was computed in; of several, each part
    writes over the one before, so they are copied.
    """

    def __init__(self, n_vocab: int, n_embd: int) -> None:
        self.logits = self._all_logits = np.empty((0, n_vocab), np.float32)
        self.hidden = self._all_hidden = np.empty((0, n_embd), np.float32)
        self._parts = 1

    def start(self, parts: int, n_outputs: int, n_hidden: int) -> None:
        """Before a batch of so many parts, outputs and hidden states."""
        self._parts = parts
        if parts == 1:
            return
        if n_outputs > len(self._all_logits):
            self._all_logits = np.empty((n_outputs, self.logits.shape[1]), np.float32)
            self._all_hidden = np.empty((n_hidden, self.hidden.shape[1]), np.float32)
        self.logits, self.hidden = self._all_logits[:0], self._all_hidden[:0]

    def add(self, logits: Reader | None, hidden: Reader | None) -> None:
        """What one part gave; None: nothing."""
        found = logits() if logits is not None else self._all_logits[:0]
        states = hidden() if hidden is not None else self._all_hidden[:0]
        if self._parts == 1:
            self.logits, self.hidden = found, states
            return
        start, end = len(self.logits), len(self.logits) + len(found)
        self._all_logits[start:end], self._all_hidden[start:end] = found, states
        self.logits, self.hidden = self._all_logits[:end], self._all_hidden[:end]

    def detach(self) -> None:
        """Before something else is computed in the memory where they may lie."""
        self.logits, self.hidden = self.logits.copy(), self.hidden.copy()


def reader(execution: Execution, tensor: Tensor, n: int) -> Reader:
    """Gives a result, float32 [n, ...], where it lies if that is memory of this process."""
    assert tensor.buffer is not None
    if tensor.buffer.kind.host:
        there = view(tensor).view(np.float32).reshape(n, -1)
        return lambda: there
    return lambda: execution.get(tensor).reshape(n, -1)
