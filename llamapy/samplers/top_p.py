"""top_p: keep the most probable tokens until their probability reaches p.

Keep the smallest m with p_1 + ... + p_m >= p, largest first, at least min_keep.
Source: Holtzman et al. 2019, "The Curious Case of Neural Text Degeneration" (nucleus sampling).
"""

from __future__ import annotations

import numpy as np

from llamapy.samplers._candidates import Candidates, largest, leading, running_sum
from llamapy.samplers._sampler import Sampler, Setup

FIRST_LOOK = (
    256  # a large unsorted list is rarely kept beyond this: look there before sorting it all
)
LARGE = 1024


class TopP(Sampler):
    """Keep the most probable tokens until their sum is at least p (Holtzman et al. 2019)."""

    letter = "p"
    aliases = ("nucleus",)
    keeps_best = True

    def __init__(self, p: float, min_keep: int) -> None:
        self.p, self.min_keep = np.float32(p), min_keep
        self.active = p < 1

    @classmethod
    def from_setup(cls, setup: Setup) -> TopP:
        return cls(setup.params.top_p, setup.params.min_keep)

    def apply(self, c: Candidates) -> None:
        probs = c.softmax()
        if c.sorted:
            n = int(np.searchsorted(running_sum(probs), self.p, side="left")) + 1
            c.take(slice(0, max(n, self.min_keep)), sorted=True)
            return
        keep = leading(c.logits, probs, self.p, side="left")
        if len(keep) < self.min_keep:
            keep = largest(c.logits, self.min_keep)
        c.take(keep, sorted=True)

    def values(self) -> str:
        return f"{self.p:g}"
