"""set_rows: write rows into a table at given numbers, converting to its type (the KV cache)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class SetRows(Op, name="set_rows", in_view=True):
    """dst [n, rows, b2, b3], x [n, m, b2, b3] float32, ids i64 or i32 [m, c2, c3] -> a view of dst,
    rows replaced.

    c2 divides b2 and c3 divides b3 (numbers repeat). Nothing else need read the result, so expand
    it explicitly.
    """

    def build(self, *src: Tensor | None) -> Tensor:
        dst, x, ids = self.bind(src)[1]
        fits = dst.ne[0] == x.ne[0] and dst.ne[2:] == x.ne[2:] and x.ne[1] == ids.ne[0]
        fits = fits and x.ne[2] % ids.ne[1] == 0 and x.ne[3] % ids.ne[2] == 0 and ids.ne[3] == 1
        self.require(fits and ids.kind.name in ("i32", "i64"), "sources do not fit", dst, x, ids)
        return Tensor(dst.kind, dst.ne, op=self, src=(dst, x, ids), nb=dst.nb, view_src=dst)

    def part(self, dst: Array, x: Array, ids: Array) -> tuple[Array, Any]:  # type: ignore[override]
        b3, b2 = x.shape[:2]
        i3, i2 = np.arange(b3)[:, None, None], np.arange(b2)[:, None]
        return x, (i3, i2, ids[0][i3 % ids.shape[1], i2 % ids.shape[2], np.arange(ids.shape[3])])

    def meaning(self, dst: Array, x: Array, ids: Array) -> Array:  # type: ignore[override]
        out = dst.copy()
        rows, index = self.part(dst, x, ids)
        out[index] = rows
        return out
