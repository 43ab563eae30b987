"""xtc: "exclude top choices": now and then drop all likely tokens but the least likely of them.

With the given probability (one single-precision draw from its own generator, seeded like the
chain's): of the tokens with p_i >= threshold drop all but the last, if there are two or more.
Source: p-e-w 2024, text-generation-webui pull request 6335.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._mt19937 import Mt19937
from llamapy.samplers._sampler import Sampler, Setup


class Xtc(Sampler):
    """At times drop all tokens of p >= threshold but the least likely of them (p-e-w 2024)."""

    letter = "x"

    def __init__(self, probability: float, threshold: float, min_keep: int, seed: int) -> None:
        self.probability, self.threshold = np.float32(probability), np.float32(threshold)
        self.min_keep, self.seed = min_keep, seed
        self.active = probability > 0 and threshold <= 0.5
        self.random = Mt19937(seed)

    @classmethod
    def from_setup(cls, setup: Setup) -> Xtc:
        p = setup.params
        return cls(p.xtc_probability, p.xtc_threshold, p.min_keep, setup.seed)

    def apply(self, c: Candidates) -> None:
        if len(c) < 2 or self.random.uniform_f32() > self.probability:
            return
        c.sort()
        likely = int(np.count_nonzero(c.softmax() >= self.threshold))
        dropped = likely - 1
        if dropped > 0 and len(c) - dropped >= self.min_keep:
            c.take(slice(dropped, None), sorted=True)

    def reset(self) -> None:
        self.random.seed(self.seed)

    def state(self) -> dict[str, Any]:
        return {"random": self.random.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.random.restore(state["random"])

    def values(self) -> str:
        return f"{self.probability:g}, {self.threshold:g}"
