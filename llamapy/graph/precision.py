"""How precisely meanings are computed: in float64 where that is cheap, else in float32."""

from __future__ import annotations

import numpy as np

from llamapy.graph.op import Array

EXACT_NUMBERS = 1 << 16  # numbers up to which functions are computed in float64
EXACT_PRODUCTS = 1 << 20  # multiplications up to which products are


def working(x: Array) -> Array:
    """x as float64 if it is small, else as float32."""
    return x.astype(np.float64 if x.size <= EXACT_NUMBERS else np.float32, copy=False)


def rows_dot_rows(x: Array, w: Array) -> Array:
    """x [..., m, k] and w [..., n, k] -> float32 [..., m, n]: out[i, j] = x[i] . w[j]. Leading axes
    broadcast. Large products are BLAS's, in float32."""
    if x.size * w.shape[-2] <= EXACT_PRODUCTS:
        x, w = x.astype(np.float64), w.astype(np.float64)
    return np.asarray(np.matmul(x, np.swapaxes(w, -1, -2)), np.float32)
