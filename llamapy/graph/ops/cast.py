"""cast: a contiguous copy in another type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor
from llamapy.quants import codec


@dataclass(frozen=True)
class Cast(Op, name="cast"):
    """x (any strides) -> the same shape in type `kind`; to integers by dropping the fraction."""

    kind: str

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        return x.ne, codec.get(self.kind).name

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.ascontiguousarray(x)
