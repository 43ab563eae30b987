"""top_n_sigma: ban tokens whose logit is more than n standard deviations below the largest.

logit = -inf where logit < max - n * sigma; sigma over the finite logits, divided by
their count. Source: Tang et al. 2024, "Top-nσ: Not All Logits Are You Need".
"""

from __future__ import annotations

import math

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._sampler import Sampler, Setup


class TopNSigma(Sampler):
    """Ban logits below max - n * sigma (Tang et al. 2024); they stay in the list with -inf."""

    letter = "s"
    keeps_best = True

    def __init__(self, n: float) -> None:
        self.n = np.float32(n)
        self.active = n > 0

    @classmethod
    def from_setup(cls, setup: Setup) -> TopNSigma:
        return cls(setup.params.top_n_sigma)

    def apply(self, c: Candidates) -> None:
        if len(c) <= 1:
            return
        finite = c.logits[c.logits != -np.inf].astype(np.float64)
        finite -= finite.mean()
        sigma = np.float32(math.sqrt(np.square(finite).mean()))
        floor = c.peak() - self.n * sigma
        c.logits = np.where(c.logits < floor, np.float32(-np.inf), c.logits)

    def values(self) -> str:
        return f"{self.n:g}"
