"""clamp: limit to a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Clamp(Op, name="clamp", inplace=True):
    """x -> float32 of the same shape, no less than lo and no more than hi."""

    lo: float
    hi: float

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.clip(x, np.float32(self.lo), np.float32(self.hi))
