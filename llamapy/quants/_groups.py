"""Groups of weights that share a scale: eight side by side, or the levels of one under its scale.

Transposed groups lie as value i of group k at float32 number 8 i + k. Sums run first to last.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem


@compiled
def columns(src, stride, n, count, out):
    """Transpose `count` groups of n float32, `stride` float32 apart at `src`, to [n, 8] at `out`.

    Lanes beyond the count repeat the last group.
    """
    for k in range(8):
        group = src + 4 * stride * min(k, count - 1)
        for i in range(n):
            mem.put_f32(out, 8 * i + k, mem.f32(group, i))


@compiled
def total(w, n):
    """Sum of n lanes at `w`, first to last."""
    result = lanes.splat(0)
    for i in range(n):
        result = result + lanes.load(w, 8 * i)
    return result


@compiled
def sum_of_squares(x, n):
    """Sum of the squares of n float32, first to last."""
    result = np.float32(0)
    for i in range(n):
        value = mem.f32(x, i)
        result += value * value
    return result


@compiled
def largest(x, n):
    """The one of n float32 with the largest size, the first of equals; +0 if all are zero."""
    size = value = np.float32(0)
    for i in range(n):
        one = mem.f32(x, i)
        if abs(one) > size:
            size, value = abs(one), one
    return value


@compiled
def put_weights(x, importance, n, sigma2, w):
    """Transposed weights: importance * sqrt(sigma2 + x * x)."""
    spread = lanes.splat(sigma2)
    for i in range(n):
        value = lanes.load(x, 8 * i)
        weight = lanes.load(importance, 8 * i) * lanes.root(spread + value * value)
        lanes.store(w, 8 * i, weight)


@compiled
def put_searched(x, n, inverse, base, least, most, out):
    """Bytes of one group (n float32 in a row): searched levels above `least`; 0 for inverse 0."""
    scale, start = lanes.splat(inverse), lanes.splat(base)
    shift = lanes.splat_i(least)
    for i in range(0, n, 8):
        l = lanes.bounded(scale * (lanes.load(x, i) - start), least, most) - shift
        if inverse == 0:
            l = shift - shift
        lanes.store_bytes(out, i, l)


@compiled
def put_levels(x, n, scale, offset, least, most, out):
    """Bytes of one group (n float32 in a row): of (x + offset) / scale, above `least`."""
    divisor, add = lanes.splat(scale), lanes.splat(offset)
    shift = lanes.splat_i(least)
    for i in range(0, n, 8):
        l = lanes.bounded((lanes.load(x, i) + add) / divisor, least, most) - shift
        lanes.store_bytes(out, i, l)
