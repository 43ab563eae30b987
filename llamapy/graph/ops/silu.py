"""silu: x * sigmoid(x)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import activations
from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Silu(Op, name="silu", inplace=True):
    """x -> float32 of the same shape."""

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return activations.silu(x).astype(np.float32)
