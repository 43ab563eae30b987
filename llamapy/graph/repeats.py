"""Repeating a tensor to a larger shape whose sizes are multiples of its own (ggml's
broadcasting)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llamapy.graph.op import Array
from llamapy.graph.tensor import Tensor


def fits(small: Tensor, ne: Sequence[int]) -> bool:
    """Whether every size of `small` divides the one in `ne`."""
    return all(s and n % s == 0 for s, n in zip(small.ne, ne))


def repeat(x: Array, shape: tuple[int, ...]) -> Array:
    """x tiled to `shape`; where only sizes of 1 grow, a view."""
    if all(s in (1, n) for s, n in zip(x.shape, shape)):
        return np.broadcast_to(x, shape)
    return np.tile(x, [n // s for s, n in zip(x.shape, shape)])
