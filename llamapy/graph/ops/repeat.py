"""repeat: tile a tensor to the shape of another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import repeats
from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Repeat(Op, name="repeat"):
    """x, like (sizes are multiples of x's) -> x's type, like's shape."""

    def shape(self, x: Tensor, like: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        self.require(repeats.fits(x, like), "sizes do not divide", x, like)
        return like.ne, x.kind.name

    def meaning(self, x: Array, like: Array) -> Array:  # type: ignore[override]
        return np.ascontiguousarray(repeats.repeat(x, like.shape))
