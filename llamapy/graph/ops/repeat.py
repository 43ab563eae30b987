"""repeat: tile a tensor to larger sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llamapy.graph import repeats
from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor, four


@dataclass(frozen=True)
class Repeat(Op, name="repeat"):
    """x -> x's type, tiled to `ne`, whose sizes are multiples of x's. `g.repeat(x, like)` takes the
    sizes of a tensor instead (and does not keep it as a source)."""

    ne: Sequence[int] = ()

    def build(self, *src: Tensor | None) -> Tensor:
        x, *like = self.bind(src)[1]
        op = replace(self, ne=four(like[0].ne if like else self.ne))
        self.require(repeats.fits(x, op.ne), f"sizes do not divide {list(op.ne)}", x)
        return Tensor(x.kind, op.ne, op=op, src=(x,))

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.ascontiguousarray(repeats.repeat(x, four(self.ne)[::-1]))
