"""view: a window on another tensor's bytes, with sizes, strides and an offset of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llamapy.graph.op import Op
from llamapy.graph.tensor import Tensor, four, strides


@dataclass(frozen=True)
class View(Op, name="view", in_view=True, computes=False):
    """x -> a view of type x's with sizes `ne`, strides `nb` and `offset` bytes from x's start.

    nb counts bytes, innermost first; missing last ones (all, if None) follow from the ones before
    as in a contiguous tensor. The view must lie within x. It has no numpy meaning: what it shows
    depends on how bytes lie.
    """

    ne: Sequence[int]
    nb: Sequence[int] | None = None
    offset: int = 0

    def build(self, *src: Tensor | None) -> Tensor:
        (x,) = self.bind(src)[1]
        ne = four(self.ne)
        nb = list(self.nb or strides(x.kind, ne)[:2])
        while len(nb) < 4:
            last = len(nb) - 1
            nb.append(x.kind.row_bytes(ne[0]) if last == 0 else nb[last] * ne[last])
        out = Tensor(x.kind, ne, op=self, src=(x,), nb=nb, view_src=x, view_offset=self.offset)
        inside = self.offset >= 0 and self.offset + out.n_bytes <= x.n_bytes
        self.require(inside, f"{list(ne)} at {self.offset} does not lie within its source", x)
        return out
