"""A text cut into chunks, and chunks sent through a model: what perplexity, importances and logits
files have in common.

As llama-perplexity: `tokens / n_ctx` chunks, the rest dropped; the first token of each is replaced
by BOS where the model wants one; of each chunk the second half is scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import LlamapyError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context, Observer
from llamapy.runtime.model import Model
from llamapy.runtime.rounding import wrapped

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

LEAST_CTX = 4
N_UBATCH = 512


@dataclass(frozen=True)
class Piece:
    """Logits of consecutive scored positions of one chunk.

    chunk    number of the chunk
    last     whether the chunk is complete with it
    logits   float32 [n, n_vocab]; valid until the next piece
    targets  i32 [n]: the tokens that followed
    """

    chunk: int
    last: bool
    logits: Floats
    targets: Ids


def cut(tokens: Sequence[int] | Ids, n_ctx: int, chunks: int = -1, *, skip: int = 0) -> Ids:
    """i32 [n_chunk, n_ctx]: the chunks of a text, without the first `skip`, `chunks` at most (-1:
    all). LlamapyError names both numbers if the text is too short for two chunks.
    """
    if n_ctx < LEAST_CTX:
        raise UsageError(f"chunks of {n_ctx} tokens; at least {LEAST_CTX} are needed")
    if chunks == 0 or chunks < -1:
        raise UsageError(f"{chunks} chunks are asked; -1 is all")
    ids = np.asarray(tokens, np.int32)[skip * n_ctx :]
    if len(ids) < 2 * n_ctx:
        after = f" after the first {skip} chunks" if skip else ""
        raise LlamapyError(
            f"the text has {len(ids)} tokens{after}, but at least {2 * n_ctx} are needed"
            f" (two chunks of {n_ctx})",
            hint="a longer text, or smaller chunks: -c",
        )
    n_chunk = len(ids) // n_ctx
    if chunks > 0:
        n_chunk = min(n_chunk, chunks)
    return ids[: n_chunk * n_ctx].reshape(n_chunk, n_ctx)


class Clock:
    """Wall time spent inside the `with`."""

    seconds = 0.0

    def __enter__(self) -> Clock:
        self._start = perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += perf_counter() - self._start


class Evaluator:
    """A context that chunks of n_ctx tokens are sent through, several side by side.

    n_batch  tokens decoded at once: so many chunks as sequences (one, if a chunk is longer); 0 is
             what is computed at once
    scored   the first scored position; default half of the chunk
    full     compute every position's output, not only the scored ones
    activations  "exact", or "q8": rounded before each product as llama.cpp's CPU kernels do
    options  of the Context
    """

    def __init__(
        self,
        model: Model,
        n_ctx: int,
        *,
        n_batch: int = 0,
        scored: int | None = None,
        full: bool = False,
        activations: str = "exact",
        observer: Observer | None = None,
        **options: Any,
    ) -> None:
        n_ubatch = options.pop("n_ubatch", N_UBATCH)
        n_batch = n_batch or n_ubatch
        self.n_seq = max(1, n_batch // n_ctx)
        self.n_ctx, self.full = n_ctx, full
        self.scored = n_ctx // 2 if scored is None else scored
        # Longer chunks come in parts of one ubatch, so that logits of one part are there at once.
        self.step = n_ctx if self.n_seq > 1 or n_ctx <= n_ubatch else n_ubatch
        self.context = Context(
            model,
            n_ctx=self.n_seq * n_ctx,
            n_batch=self.n_seq * n_ctx,
            n_ubatch=n_ubatch,
            n_seq_max=self.n_seq,
            n_outputs_max=n_ubatch,
            observer=wrapped(activations, observer),
            activation_bits=16,  # a measure is worth its time
            **options,
        )
        self.whole = observer is not None and observer.whole
        self.clock = Clock()
        tokenizer = model.tokenizer
        self.bos = tokenizer.bos if tokenizer.add_bos else None

    @property
    def threads(self) -> int:
        """Threads that the context computes with."""
        return max(getattr(b, "n_threads", 1) for b in self.context.engine.backends)

    def run(self, chunks: Ids, *, bos: bool = True) -> Iterator[Piece]:
        """The scored logits of chunks i32 [n_chunk, n_ctx], in their order."""
        for first in range(0, len(chunks), self.n_seq):
            some = chunks[first : first + self.n_seq]
            fed = some.copy()
            if bos and self.bos is not None:
                fed[:, 0] = self.bos
            self.context.memory.clear()
            for at in range(0, self.n_ctx, self.step):
                yield from self._part(first, some, fed, at)

    def _part(self, first: int, some: Ids, fed: Ids, at: int) -> Iterator[Piece]:
        """Decode positions at to at + step of chunks side by side; their scored logits."""
        position = np.arange(at, min(at + self.step, self.n_ctx), dtype=np.int32)
        scored = (position >= self.scored) & (position < self.n_ctx - 1)
        n_seq, n = len(some), len(position)
        outputs = np.ones(n, np.bool_) if self.full else scored.copy()
        if self.whole and not outputs.any():
            outputs[-1] = True  # without any output the last layer would not be computed
        logits = self.context.decode(
            Batch(
                fed[:, position].ravel(),
                positions=np.tile(position, n_seq),
                sequences=np.repeat(np.arange(n_seq), n),
                outputs=np.tile(outputs, n_seq),
            ),
            copy=False,
        )
        if not scored.any():
            return
        targets = some[:, position[scored] + 1]
        kept = np.flatnonzero(scored[outputs])
        for i, rows in enumerate(logits.reshape(n_seq, -1, logits.shape[1])):
            last = int(position[-1]) >= self.n_ctx - 2  # the very last foretells nothing
            yield Piece(first + i, last, rows[kept[0] : kept[-1] + 1], targets[i])
