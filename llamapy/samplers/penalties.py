"""penalties: make tokens of the recent text less likely.

For a token t that stands count times among the last n tokens (prompt and generated):
    logit = logit * repeat if logit <= 0 else logit / repeat
    logit = logit - count * freq - present
Sources: Keskar et al. 2019, "CTRL" (repeat; the paper divides always, which would favour tokens
with negative logits, so those are multiplied, as in llama.cpp); OpenAI API (freq, present).
A window of -1 is the whole text and 0 is off; llama.cpp turns negative windows into 0.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._sampler import Sampler, Setup


class Penalties(Sampler):
    """logit * or / repeat, - count * freq - present, for recent tokens (CTRL; OpenAI API)."""

    letter = "e"

    def __init__(self, last_n: int, repeat: float, freq: float, present: float) -> None:
        self.last_n = last_n
        self.repeat = np.float32(repeat)
        self.freq, self.present = np.float32(freq), np.float32(present)
        self.active = last_n != 0 and (repeat != 1 or freq != 0 or present != 0)
        self.window: deque[int] = deque()
        self.counts: Counter[int] = Counter()

    @classmethod
    def from_setup(cls, setup: Setup) -> Penalties:
        p = setup.params
        return cls(p.penalty_last_n, p.penalty_repeat, p.penalty_freq, p.penalty_present)

    def apply(self, c: Candidates) -> None:
        tokens = np.fromiter(self.counts.keys(), np.int32, len(self.counts))
        counts = np.fromiter(self.counts.values(), np.float32, len(self.counts))
        at, which = c.find(tokens)
        old = c.logits[at]
        new = np.where(old <= 0, old * self.repeat, old / self.repeat)
        logits = c.logits.copy()
        logits[at] = new - (counts[which] * self.freq + self.present)
        c.logits, c.sorted = logits, False

    def accept(self, token: int) -> None:
        if not self.active:
            return
        self.window.append(token)
        self.counts[token] += 1
        if 0 < self.last_n < len(self.window):
            old = self.window.popleft()
            self.counts[old] -= 1
            if not self.counts[old]:
                del self.counts[old]

    def reset(self) -> None:
        self.window.clear()
        self.counts.clear()

    def state(self) -> dict[str, Any]:
        return {"window": list(self.window)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.window = deque(state["window"])
        self.counts = Counter(self.window)

    def values(self) -> str:
        return f"last {self.last_n}, {self.repeat:g}, {self.freq:g}, {self.present:g}"
