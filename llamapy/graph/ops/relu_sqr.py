"""relu_sqr: the square of x where positive, else 0."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import activations
from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class ReluSqr(Op, name="relu_sqr", inplace=True):
    """x -> float32 of the same shape."""

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.square(activations.relu(x)).astype(np.float32)
