"""transpose: a view with dimensions 0 and 1 exchanged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Transpose(Op, name="transpose", in_view=True, computes=False):
    """x [n, m, ...] (no blocks) -> a view [m, n, ...]."""

    def build(self, *src: Tensor | None) -> Tensor:
        (x,) = self.bind(src)[1]
        self.require(x.kind.n_values == 1, "rows of blocks cannot be turned", x)
        (a, b, *ne), (c, d, *nb) = x.ne, x.nb
        return Tensor(x.kind, (b, a, *ne), op=self, src=(x,), nb=(d, c, *nb), view_src=x)

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return np.swapaxes(x, -1, -2)
