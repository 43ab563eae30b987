"""top_k: the numbers of the k largest values of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class TopK(Op, name="top_k"):
    """x [n, ...] -> i32 [k, ...], the largest first; equal values by their number."""

    k: int

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        self.require(0 < self.k <= x.ne[0], f"cannot take {self.k}", x)
        return (self.k, *x.ne[1:]), "i32"

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.argsort(-x, axis=-1, kind="stable")[..., : self.k].astype(np.int32)
