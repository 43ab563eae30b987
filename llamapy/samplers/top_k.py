"""top_k: keep the k largest logits, ordered.

Source: Fan et al. 2018, "Hierarchical Neural Story Generation". Ties at the border go to the lowest
id.
"""

from __future__ import annotations

from llamapy.samplers._candidates import Candidates, largest
from llamapy.samplers._sampler import Sampler, Setup


class TopK(Sampler):
    """Keep the k largest logits, largest first (Fan et al. 2018); k <= 0 keeps all."""

    letter = "k"
    keeps_best = True

    def __init__(self, k: int) -> None:
        self.k = k
        self.active = k > 0

    @classmethod
    def from_setup(cls, setup: Setup) -> TopK:
        return cls(setup.params.top_k)

    def apply(self, c: Candidates) -> None:
        if c.sorted:
            c.take(slice(0, self.k), sorted=True)
        else:
            c.take(largest(c.logits, min(self.k, len(c))), sorted=True)

    def values(self) -> str:
        return str(self.k)
