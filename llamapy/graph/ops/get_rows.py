"""get_rows: rows of a table by their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class GetRows(Op, name="get_rows", by_rows=(0,)):
    """table [n, rows, b2, b3] of any type, ids i32 [m, b2, b3] -> float32 [n, m, b2, b3] (i32 if
    the table is)."""

    def shape(self, table: Tensor, ids: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = table.ne[2:] == ids.ne[1:3] and ids.ne[3] == 1 and ids.kind.name == "i32"
        self.require(fits, "the numbers do not fit the table", table, ids)
        kind = "i32" if table.kind.name == "i32" else "f32"
        return (table.ne[0], *ids.ne[:3]), kind

    def meaning(self, table: Array, ids: Array) -> Array:  # type: ignore[override]
        b3, b2, _ = ids.shape[1:]
        i3, i2 = np.arange(b3)[:, None, None], np.arange(b2)[:, None]
        return np.asarray(table[i3, i2, ids[0]])
