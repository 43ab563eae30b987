"""add_id: add to each row the bias of the expert that it went through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class AddId(Op, name="add_id", inplace=True, by_rows=(1,)):
    """x [n, n_used, n_tokens], b [n, n_expert], ids i32 [n_used, n_tokens] -> x[:, u, t] + b[:,
    ids[u, t]]."""

    def shape(self, x: Tensor, b: Tensor, ids: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = x.ne[0] == b.ne[0] and ids.ne == (x.ne[1], x.ne[2], 1, 1) and x.ne[3] == 1
        self.require(fits and ids.kind.name == "i32", "sources do not fit", x, b, ids)
        return x.ne, "f32"

    def meaning(self, x: Array, b: Array, ids: Array) -> Array:  # type: ignore[override]
        return np.asarray(x + b[0, 0, ids[0, 0]])
