"""dist: draw a token by its probability.

w_i = exp(logit_i - max); the token is the first, in the order of the candidates, where
w_1 + ... + w_i >= r * (w_1 + ... + w_n), r a double in [0, 1) from std::mt19937(seed). There is one
draw even
for one candidate. Source: llama.cpp's `dist` (inversion sampling), so that seeds give the same text
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.samplers._candidates import SMALL, Candidates, exp_f32
from llamapy.samplers._mt19937 import Mt19937
from llamapy.samplers._sampler import Sampler, Setup

BLOCK = 512  # a long list is summed by blocks first, then only one block is walked


class Dist(Sampler):
    """Draw by probability: inversion over the candidates in their order (source: llama.cpp)."""

    selects = True

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Mt19937(seed)

    @classmethod
    def from_setup(cls, setup: Setup) -> Dist:
        return cls(setup.seed)

    def apply(self, c: Candidates) -> None:
        draw = self.random.uniform()
        relative = c.logits - c.peak()
        if len(c) <= SMALL:
            weights = exp_f32(relative).astype(np.float64)
            sums = np.cumsum(weights)
            total = sums[-1]
            c.selected = int(np.searchsorted(sums, total * draw, side="left"))
        else:
            weights = np.exp(relative).astype(np.float64)
            total, c.selected = _walk_blocks(weights, draw)
        c.probs = (weights / total).astype(np.float32)

    def reset(self) -> None:
        self.random.seed(self.seed)

    def state(self) -> dict[str, Any]:
        return {"random": self.random.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.random.restore(state["random"])

    def values(self) -> str:
        return f"seed {self.seed}"


def _walk_blocks(weights: NDArray[np.float64], draw: float) -> tuple[float, int]:
    """(sum of `weights`, first position whose running sum reaches that times `draw`)."""
    starts = np.arange(0, len(weights), BLOCK)
    sums = np.cumsum(np.add.reduceat(weights, starts))
    goal = sums[-1] * draw
    block = int(np.searchsorted(sums, goal, side="left"))
    before = sums[block - 1] if block else 0.0
    inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK])
    at = min(int(np.searchsorted(inside, goal, side="left")), len(inside) - 1)
    return float(sums[-1]), block * BLOCK + at
