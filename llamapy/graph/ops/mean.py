"""mean: the mean of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Mean(Op, name="mean"):
    """x [n, ...] -> float32 [1, ...]."""

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        return (1, *x.ne[1:]), "f32"

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.asarray(x.mean(axis=-1, keepdims=True, dtype=np.float64), np.float32)
