"""min_p: keep the tokens that are at least p times as probable as the most probable one.

Keep where logit >= max + ln p, which is p_i >= p * p_max; at least min_keep. The order stays as it
is. Source: Nguyen et al. 2024, "Turning Up the Heat: Min-p Sampling".
"""

from __future__ import annotations

import math

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._sampler import Sampler, Setup


class MinP(Sampler):
    """Keep logits of at least max + ln p (Nguyen et al. 2024)."""

    letter = "m"
    keeps_best = True

    def __init__(self, p: float, min_keep: int) -> None:
        self.p, self.min_keep = np.float32(p), min_keep
        self.active = p > 0

    @classmethod
    def from_setup(cls, setup: Setup) -> MinP:
        return cls(setup.params.min_p, setup.params.min_keep)

    def apply(self, c: Candidates) -> None:
        floor = c.peak() + np.float32(math.log(float(self.p)))
        keep = np.flatnonzero(c.logits >= floor)
        if len(keep) >= self.min_keep:
            c.take(keep, sorted=c.sorted)
        else:
            c.sort()
            c.take(slice(0, self.min_keep), sorted=True)

    def values(self) -> str:
        return f"{self.p:g}"
