"""permute: the same bytes with the dimensions in another order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Permute(Op, name="permute", in_view=True, computes=False):
    """x -> a view whose dimension axes[i] is x's dimension i. Types with blocks must keep dimension
    0."""

    axes: Sequence[int]

    def build(self, *src: Tensor | None) -> Tensor:
        (x,) = self.bind(src)[1]
        axes = tuple(self.axes)
        self.require(sorted(axes) == [0, 1, 2, 3], f"{axes} is no order of 0, 1, 2, 3", x)
        self.require(x.kind.n_values == 1 or axes[0] == 0, "rows of blocks cannot be turned", x)
        source = [axes.index(i) for i in range(4)]
        ne, nb = [x.ne[i] for i in source], [x.nb[i] for i in source]
        return Tensor(x.kind, ne, op=self, src=(x,), nb=nb, view_src=x)

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        axes = tuple(self.axes)
        return np.transpose(x, [3 - axes.index(3 - i) for i in range(4)])
