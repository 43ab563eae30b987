"""mul_mat: the product of a matrix of weights with rows of activations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.core.errors import ShapeError
from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class MulMat(Op, name="mul_mat"):
    """w [k, n, b2, b3] of any type, x [k, m, B2, B3] float32 -> [n, m, B2, B3]: out[j, i] = w row j . x row i.

    b2 divides B2 and b3 divides B3: w is broadcast, each of its matrices serving B2/b2 neighbours (grouped heads).
    """

    def shape(self, w: Tensor, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        if w.ne[0] != x.ne[0] or x.ne[2] % w.ne[2] or x.ne[3] % w.ne[3]:
            raise ShapeError(f"mul_mat: {w!r} does not fit {x!r}")
        return (w.ne[1], x.ne[1], x.ne[2], x.ne[3]), "f32"

    def meaning(self, w: Array, x: Array) -> Array:  # type: ignore[override]
        w = np.repeat(w, x.shape[1] // w.shape[1], axis=1)
        w = np.repeat(w, x.shape[0] // w.shape[0], axis=0)
        return np.asarray(np.matmul(x, np.swapaxes(w, -1, -2)), np.float32)
