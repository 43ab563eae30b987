"""norm: shift each row to mean 0 and scale it to variance 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class Norm(Op, name="norm"):
    """x [n, ...] -> float32 of the same shape: (x - mean) / sqrt(variance + eps) along ne[0]."""

    eps: float = 1e-5

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        x = x - x.mean(axis=-1, keepdims=True, dtype=np.float64)
        variance = np.square(x).mean(axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(variance + self.eps), np.float32)
