"""typ_p: keep the tokens whose surprise is nearest to the expected one, until their probability
exceeds p.

H = -sum p_i ln p_i; order by |-ln p_i - H|; keep the first ones whose sum is > p (top_p stops at >=
p). Source: Meister et al. 2022, "Locally Typical Sampling". The kept tokens stay in that order:
unsorted.
"""

from __future__ import annotations

import numpy as np

from llamapy.samplers._candidates import (
    F32,
    Candidates,
    falling,
    largest,
    leading,
    log_f32,
    running_sum,
)
from llamapy.samplers._sampler import Sampler, Setup


class TypP(Sampler):
    """Keep tokens by rising |-ln p - H| until their sum is above p (Meister et al. 2022)."""

    letter = "y"
    aliases = ("typ", "typical")

    def __init__(self, p: float, min_keep: int) -> None:
        self.p, self.min_keep = np.float32(p), min_keep
        self.active = p < 1

    @classmethod
    def from_setup(cls, setup: Setup) -> TypP:
        return cls(setup.params.typ_p, setup.params.min_keep)

    def apply(self, c: Candidates) -> None:
        probs = c.softmax(largest_first=True)
        entropy = running_sum(_terms(falling(probs)))[-1]
        nearness = -np.abs(-log_f32(probs) - entropy)
        keep = leading(nearness, probs, self.p, side="right")
        if len(keep) < self.min_keep:
            keep = largest(nearness, self.min_keep)
        c.take(keep, sorted=False)

    def values(self) -> str:
        return f"{self.p:g}"


def _terms(probs: F32) -> F32:
    """-p ln p, whose limit at 0 is 0."""
    positive = probs[probs > 0]
    return -positive * log_f32(positive)
