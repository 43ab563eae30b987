"""reshape: the same elements in the same order under other sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor, four


@dataclass(frozen=True)
class Reshape(Op, name="reshape", in_view=True, computes=False):
    """x (contiguous) -> a view of it with sizes `ne`, innermost first."""

    ne: Sequence[int]

    def build(self, *src: Tensor | None) -> Tensor:
        (x,) = self.bind(src)[1]
        out = Tensor(x.kind, self.ne, op=self, src=(x,), view_src=x)
        self.require(x.contiguous, "the source is not contiguous", x)
        self.require(
            out.n_elements == x.n_elements, f"{list(self.ne)} has another number of elements", x
        )
        return out

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return x.reshape(four(self.ne)[::-1])
