"""argsort: the numbers that put each row in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Argsort(Op, name="argsort"):
    """x [n, ...] -> i32 [n, ...]: order "asc" or "desc"; equal values by their number."""

    order: str = "asc"

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        self.require(self.order in ("asc", "desc"), f"unknown order {self.order!r}", x)
        return x.ne, "i32"

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        key = x if self.order == "asc" else -x
        return np.argsort(key, axis=-1, kind="stable").astype(np.int32)
