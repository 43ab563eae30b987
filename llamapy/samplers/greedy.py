"""greedy: the token with the largest logit; of equal ones the lowest id.

argmax_i logit_i. No random number is drawn. It ends the chain when the temperature is 0.
Source: the limit of temperature -> 0.
"""

from __future__ import annotations

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._sampler import Sampler, Setup


class Greedy(Sampler):
    """argmax of the logits, ties to the lowest id (source: the limit of temperature -> 0)."""

    keeps_best = True
    selects = True

    @classmethod
    def from_setup(cls, setup: Setup) -> Greedy:
        return cls()

    def apply(self, c: Candidates) -> None:
        if c.whole:
            c.selected = int(np.argmax(c.logits))
            return
        best = np.flatnonzero(c.logits == c.logits.max())
        c.selected = int(best[np.argmin(c.ids[best])])
