"""temperature: sharpen or flatten the distribution; optionally by how sure the model is.

logit /= t. With a range r > 0 ("dynamic temperature"), t goes from max(0, temp - r) to temp + r:
    t = low + (high - low) * (H / ln n) ^ exponent,    H = -sum p_i ln p_i over the n candidates.
t <= 0 leaves only the largest logit finite. Sources: Ackley et al. 1985 (Boltzmann machines);
kalomaze 2023, "Dynamic Temperature Sampling" (entropy version), as in llama.cpp's temp-ext.
"""

from __future__ import annotations

import math

import numpy as np

from llamapy.samplers._candidates import Candidates, log_f32, running_sum
from llamapy.samplers._sampler import Sampler, Setup


class Temperature(Sampler):
    """logit /= t, with t fixed or following the entropy (Ackley et al. 1985; kalomaze 2023)."""

    letter = "t"
    aliases = ("temp",)
    keeps_best = True

    def __init__(self, temp: float, spread: float, exponent: float) -> None:
        self.temp, self.spread = np.float32(temp), np.float32(spread)
        self.exponent = np.float32(exponent)
        self.active = temp != 1 or spread > 0

    @classmethod
    def from_setup(cls, setup: Setup) -> Temperature:
        p = setup.params
        return cls(p.temp, p.dynatemp_range, p.dynatemp_exponent)

    def apply(self, c: Candidates) -> None:
        if self.spread <= 0:
            scale(c, self.temp)
        elif len(c) > 1:
            scale(c, self._from_entropy(c))
            c.softmax()

    def _from_entropy(self, c: Candidates) -> np.float32:
        """The dynamic temperature of these candidates, which are sorted by this."""
        c.sort()
        probs = c.softmax()
        probs = probs[probs > 0]
        entropy = -running_sum(probs * log_f32(probs))[-1] / np.float32(math.log(len(c)))
        low = max(np.float32(0), self.temp - self.spread)
        return np.float32(low + (self.temp + self.spread - low) * np.power(entropy, self.exponent))

    def values(self) -> str:
        if self.spread <= 0:
            return f"{self.temp:g}"
        return f"{self.temp:g} +- {self.spread:g}, exponent {self.exponent:g}"


def scale(c: Candidates, temp: np.float32) -> None:
    """Divide the logits by `temp`; at 0 or below only the first of the largest stays finite."""
    if temp > 0:
        c.logits = c.logits / temp
        return
    best = 0 if c.sorted else int(np.argmax(c.logits))
    logits = np.full(len(c), -np.inf, np.float32)
    logits[best] = c.logits[best]
    c.logits = logits
