"""adaptive_p: draw tokens whose probability is near a target, held there on average.

The wanted probability is w = clip(2 target - (decayed mean of the probabilities drawn), 0, 1), and
    logit_i = 5 - 10 d^2 / (1 + d),   d = |p_i - w| / 0.3,
from which the token is drawn. After it is accepted: sum = p + decay * sum, weight = 1 + decay *
weight. A negative target draws from the plain distribution. Source: llama.cpp pull request 17927
(MrJackSpade, ddh0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._mt19937 import Mt19937
from llamapy.samplers._sampler import Sampler, Setup

INV_WIDTH = np.float32(1) / np.float32(0.3)
PEAK, SHARPNESS = np.float32(5), np.float32(10)


class AdaptiveP(Sampler):
    """logit = 5 - 10 d^2 / (1 + d), d = |p - wanted| / 0.3; then draw (llama.cpp PR 17927)."""

    letter = "a"
    selects = True

    def __init__(self, target: float, decay: float, seed: int) -> None:
        self.target, self.decay, self.seed = np.float32(target), np.float32(decay), seed
        self.random = Mt19937(seed)
        self._start()

    def _start(self) -> None:
        """As if the target had been met for ever."""
        self.weight = np.float32(1) / (np.float32(1) - self.decay)
        self.sum = self.target / (np.float32(1) - self.decay)
        self.pending: tuple[int, float] | None = None  # the token drawn last and its probability

    @classmethod
    def from_setup(cls, setup: Setup) -> AdaptiveP:
        return cls(setup.params.adaptive_target, setup.params.adaptive_decay, setup.seed)

    def apply(self, c: Candidates) -> None:
        probs = c.softmax()
        if self.target < 0:
            c.selected = self.random.discrete(probs)
            return
        wanted = np.clip(np.float32(2) * self.target - self.sum / self.weight, 0, 1)
        distance = np.abs((probs - wanted) * INV_WIDTH)
        shaped = PEAK - SHARPNESS * distance * distance / (np.float32(1) + distance)
        c.logits = np.where(c.logits == -np.inf, c.logits, shaped)
        c.sorted = False
        c.selected = self.random.discrete(c.softmax())
        self.pending = int(c.ids[c.selected]), float(probs[c.selected])

    def accept(self, token: int) -> None:
        if self.pending and self.pending[0] == token:
            self.sum = np.float32(self.pending[1]) + self.decay * self.sum
            self.weight = np.float32(1) + self.decay * self.weight
        self.pending = None

    def reset(self) -> None:
        self._start()
        self.random.seed(self.seed)

    def state(self) -> dict[str, Any]:
        numbers = {"sum": float(self.sum), "weight": float(self.weight)}
        return {**numbers, "pending": self.pending, "random": self.random.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.sum, self.weight = np.float32(state["sum"]), np.float32(state["weight"])
        self.pending = tuple(state["pending"]) if state["pending"] else None
        self.random.restore(state["random"])

    def values(self) -> str:
        return f"{self.target:g}, decay {self.decay:g}, seed {self.seed}"
