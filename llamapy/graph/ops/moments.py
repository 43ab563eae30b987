"""moments: sums of squares and sums of each column over all rows, or over the rows of each expert.

What an importance matrix is made of (ggml has no such op: llama-imatrix sums on the host).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Moments(Op, name="moments", optional={"ids": 1}):
    """x [k, ...] float32 -> [k, 2]: sums of squares, sums.

    With ids i32 [n_used, n_tokens] and x [k, m (1 or n_used), n_tokens]: [k, 2, n_mat], where row
    u mod m of token t counts for matrix ids[u, t].
    """

    n_mat: int = 1
    has_ids: bool = False

    def shape(self, x: Tensor, *ids: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = x.kind.name == "f32" and (bool(ids) or self.n_mat == 1)
        fits = fits and all(i.ne[1:] == (x.ne[2], 1, 1) and x.ne[3] == 1 for i in ids)
        self.require(fits, "sources do not fit", x, *ids)
        return (x.ne[0], 2, self.n_mat), "f32"

    def meaning(self, x: Array, *ids: Array) -> Array:  # type: ignore[override]
        wide = x.astype(np.float64)
        if not ids:
            rows = wide.reshape(-1, x.shape[-1])
            return np.stack([(rows * rows).sum(0), rows.sum(0)])[None, None].astype(np.float32)
        out = np.zeros((self.n_mat, 2, x.shape[-1]))
        for (token, used), mat in np.ndenumerate(ids[0][0, 0]):
            row = wide[0, token, used % x.shape[2]]
            out[mat] += np.stack([row * row, row])
        return out[None].astype(np.float32)
