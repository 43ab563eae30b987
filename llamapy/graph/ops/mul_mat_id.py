"""mul_mat_id: products with those matrices (experts) that each token chose."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.precision import rows_dot_rows
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class MulMatId(Op, name="mul_mat_id", by_rows=(0,)):
    """w [k, n, n_expert], x [k, m, n_tokens] float32, ids i32 [n_used, n_tokens] -> [n, n_used,
    n_tokens].

    out[:, u, t] = w[ids[u, t]] . x[:, u mod m, t]; m divides n_used (1: all experts see the same
    row).
    """

    def shape(self, w: Tensor, x: Tensor, ids: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = w.ne[0] == x.ne[0] and w.ne[3] == x.ne[3] == 1 and ids.ne[1:] == (x.ne[2], 1, 1)
        fits = fits and ids.ne[0] % x.ne[1] == 0 and ids.kind.name == "i32"
        self.require(fits, "sources do not fit", w, x, ids)
        return (w.ne[1], ids.ne[0], x.ne[2]), "f32"

    def meaning(self, w: Array, x: Array, ids: Array) -> Array:  # type: ignore[override]
        chosen = ids[0, 0]  # [n_tokens, n_used]
        out = np.empty((*chosen.shape, w.shape[2]), np.float32)
        for expert in np.unique(chosen):
            token, used = np.nonzero(chosen == expert)
            out[token, used] = rows_dot_rows(x[0, token, used % x.shape[2]], w[0, expert])
        return out[None]
