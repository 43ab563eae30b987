"""scale: multiply by a constant and add another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Scale(Op, name="scale", inplace=True):
    """x -> float32 of the same shape: s * x + b."""

    s: float
    b: float = 0.0

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return (x * np.float64(self.s) + self.b).astype(np.float32)
