"""sqrt: the square root."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Sqrt(Op, name="sqrt", inplace=True):
    """x -> float32 of the same shape."""

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.sqrt(x)
