"""What the attention kernels share: masks, ALiBi slopes, the soft cap."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activate
from llamapy.backend.cpu import record as rec
from llamapy.native import compiled, simd

MINUS_INFINITY = 0xFC00  # as a half: what a mask hides a key with
HIDDEN = 0xFC00FC00FC00FC00  # four of them


@compiled
def slope(head, n_head, max_bias):
    """What a head multiplies the mask by (formula: graph/softmax.py)."""
    if max_bias <= 0:
        return np.float32(1)
    n = 1
    while n * 2 <= n_head:
        n *= 2
    if head < n:
        return np.float32(2.0 ** (-max_bias / n * (head + 1)))
    return np.float32(2.0 ** (-max_bias / 2 / n * (2 * (head - n) + 1)))


@compiled
def mask_row(node, t, query, head, i3):
    """Address of the mask's row for a query; 0 without a mask."""
    mask = rec.data(node, t)
    if mask == 0:
        return mask
    return (
        mask
        + query * rec.nb(node, t, 1)
        + head % rec.ne(node, t, 2) * rec.nb(node, t, 2)
        + i3 % rec.ne(node, t, 3) * rec.nb(node, t, 3)
    )


@compiled
def capped(scores, cap):
    """cap * tanh(scores / cap) in sixteen lanes; unchanged for cap 0."""
    if cap == 0:
        return scores
    zero = np.float32(0)
    inner = activate.tanh(simd.splat_f32x16(np.float32(1) / cap) * scores, zero, zero)
    return simd.splat_f32x16(cap) * inner


@compiled
def plane(node, t, head, i3):
    """Address of the keys' or values' matrix that serves a head of the queries (tensor 1)."""
    own = head * rec.ne(node, t, 2) // rec.ne(node, 1, 2)
    return (
        rec.data(node, t)
        + own * rec.nb(node, t, 2)
        + i3 * rec.ne(node, t, 3) // rec.ne(node, 1, 3) * rec.nb(node, t, 3)
    )
