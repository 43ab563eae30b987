"""mul_mat: the product of a matrix of weights with rows of activations."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph.op import Array, Op
from llamapy.graph.precision import rows_dot_rows
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class MulMat(Op, name="mul_mat"):
    """w [k, n, b2, b3] of any type, x [k, m, B2, B3] float32 -> [n, m, B2, B3]: out[j, i] = w row j
    . x row i.

    b2 divides B2 and b3 divides B3: w is broadcast, each of its matrices serving B2/b2 neighbours
    (grouped heads).
    """

    def shape(self, w: Tensor, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = w.ne[0] == x.ne[0] and x.ne[2] % w.ne[2] == 0 and x.ne[3] % w.ne[3] == 0
        self.require(fits, "weights do not fit", w, x)
        return (w.ne[1], x.ne[1], x.ne[2], x.ne[3]), "f32"

    def meaning(self, w: Array, x: Array) -> Array:  # type: ignore[override]
        b3, b2, n, k = w.shape
        if b2 == b3 == 1:  # one matrix: one product
            return rows_dot_rows(x.reshape(-1, k), w[0, 0]).reshape(*x.shape[:3], n)
        grouped = x.reshape(b3, x.shape[0] // b3, b2, x.shape[1] // b2, *x.shape[2:])
        return rows_dot_rows(grouped, w[:, None, :, None]).reshape(*x.shape[:3], n)
