"""tanh: the hyperbolic tangent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Tanh(Op, name="tanh", inplace=True):
    """x -> float32 of the same shape."""

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.tanh(x, dtype=np.float64).astype(np.float32)
