"""mirostat: keep the surprise of the text near a target tau, by feedback.

mu starts at 2 tau. Version 1 estimates the Zipf exponent s from the m = 100 most probable tokens,
    s = sum t_i b_i / sum t_i^2,  t_i = ln((i+1)/i),  b_i = ln(p_i / p_{i+1}),
and keeps the k = ((s-1) 2^mu / (1 - N^(1-s)))^(1/s) most probable of N. Version 2 keeps those of
surprise -log2 p <= mu. Then one is drawn, and mu -= eta * (-log2 p - tau).
Source: Basu et al. 2021, "Mirostat: A Neural Text Decoding Algorithm that Directly Controls
Perplexity". A k beyond the list keeps all of it; llama.cpp overflows an int there and keeps one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llamapy.samplers._candidates import F32, Candidates, falling, largest, running_sum
from llamapy.samplers._mt19937 import Mt19937
from llamapy.samplers._sampler import Sampler, Setup

M = 100  # how many tokens estimate the exponent


class Mirostat(Sampler):
    """Truncate at surprise mu and draw; mu follows the surprise towards tau (Basu et al. 2021)."""

    selects = True

    def __init__(self, version: int, tau: float, eta: float, n_vocab: int, seed: int) -> None:
        self.version, self.n_vocab, self.seed = version, n_vocab, seed
        self.tau, self.eta = np.float32(tau), np.float32(eta)
        self.mu = np.float32(2) * self.tau
        self.random = Mt19937(seed)

    @classmethod
    def from_setup(cls, setup: Setup) -> Mirostat:
        p = setup.params
        return cls(p.mirostat, p.mirostat_tau, p.mirostat_eta, setup.n_vocab, setup.seed)

    def apply(self, c: Candidates) -> None:
        probs = falling(c.softmax(largest_first=True))
        keep = self._zipf_count(probs) if self.version == 1 else self._below_mu(probs)
        c.take(largest(c.logits, max(keep, 1)), sorted=True)
        probs = c.softmax()
        c.selected = self.random.discrete(probs)
        self.mu -= self.eta * (-np.log2(probs[c.selected]) - self.tau)

    def _below_mu(self, probs: F32) -> int:
        """How many leading tokens have a surprise of at most mu."""
        with np.errstate(divide="ignore"):
            above = -np.log2(probs) > self.mu
        return int(np.argmax(above)) if above.any() else len(probs)

    def _zipf_count(self, probs: F32) -> int:
        """k of version 1."""
        leading = probs[:M]
        if len(leading) < 2:
            return 1
        ranks = np.arange(1, len(leading) + 1, dtype=np.float32)
        with np.errstate(all="ignore"):
            t = np.log(ranks[1:] / ranks[:-1])
            b = np.log(leading[:-1] / leading[1:])
            s = running_sum(t * b)[-1] / running_sum(t * t)[-1]
            excess = s - np.float32(1)
            bulk = np.float32(1) - np.power(np.float32(self.n_vocab), -excess)
            k = np.power(excess * np.power(np.float32(2), self.mu) / bulk, np.float32(1) / s)
        if np.isnan(k):
            return 1
        return int(min(k, len(probs)))

    def reset(self) -> None:
        self.mu = np.float32(2) * self.tau
        self.random.seed(self.seed)

    def state(self) -> dict[str, Any]:
        return {"mu": float(self.mu), "random": self.random.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.mu = np.float32(state["mu"])
        self.random.restore(state["random"])

    def values(self) -> str:
        return f"{self.version}, tau {self.tau:g}, eta {self.eta:g}, seed {self.seed}"
