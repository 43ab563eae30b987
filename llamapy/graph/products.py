"""Products of rows with rows: float64 where that is cheap, else float32 by BLAS."""

from __future__ import annotations

import numpy as np

from llamapy.graph.op import Array

EXACT_PRODUCTS = 1 << 22  # multiplications up to which float64 is used


def rows_dot_rows(x: Array, w: Array) -> Array:
    """x [..., m, k] and w [..., n, k] -> float32 [..., m, n]: out[i, j] = x[i] . w[j]. Leading axes
    broadcast."""
    if x.size * w.shape[-2] <= EXACT_PRODUCTS:
        x, w = x.astype(np.float64), w.astype(np.float64)
    return np.asarray(np.matmul(x, np.swapaxes(w, -1, -2)), np.float32)
