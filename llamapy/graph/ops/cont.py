"""cont: a contiguous copy of a tensor with any strides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Cont(Op, name="cont"):
    """x -> the same type and shape, contiguous."""

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        return x.ne, x.kind.name

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.ascontiguousarray(x)
