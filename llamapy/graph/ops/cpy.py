"""cpy: write a tensor into another one's memory, converting its type."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Cpy(Op, name="cpy", in_view=True):
    """x, dst of as many elements -> a view of dst with x's elements in order. Nothing else reads
    the result, so expand it explicitly."""

    def build(self, *src: Tensor | None) -> Tensor:
        x, dst = self.bind(src)[1]
        self.require(
            x.n_elements == dst.n_elements, "source and destination differ in size", x, dst
        )
        return Tensor(dst.kind, dst.ne, op=self, src=(x, dst), nb=dst.nb, view_src=dst)

    def meaning(self, x: Array, dst: Array) -> Array:  # type: ignore[override]
        return np.ascontiguousarray(x).reshape(dst.shape)
