"""l2_norm: divide each row by its length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class L2Norm(Op, name="l2_norm"):
    """x [n, ...] -> float32 of the same shape: x / max(sqrt(sum(x^2)), eps) along ne[0]."""

    eps: float = 1e-5

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        length = np.sqrt(np.square(x, dtype=np.float64).sum(axis=-1, keepdims=True))
        return np.asarray(x / np.maximum(length, self.eps), np.float32)
