"""argmax: the number of the largest value of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Argmax(Op, name="argmax"):
    """x [n, rows] -> i32 [rows]; the first of equal values."""

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        self.require(x.ne[2] == x.ne[3] == 1, "a matrix is needed", x)
        return (x.ne[1],), "i32"

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.asarray(np.argmax(x, axis=-1), np.int32)[None]
