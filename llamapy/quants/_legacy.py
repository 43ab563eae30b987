"""What the types of 32 weights a block share when they are written: extremes, rounding, packing."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _groups, search


@compiled
def extremes(x, n):
    """Least and greatest of n float32 (a multiple of 8)."""
    low = high = lanes.load(x, 0)
    for i in range(8, n, 8):
        value = lanes.load(x, i)
        low, high = lanes.lesser(low, value), lanes.greater(high, value)
    return lanes.lowest(low), lanes.highest(high)


@compiled
def peak(x, n):
    """The one of n float32 with the largest size: the first of equals, +0 if all are zero."""
    low, high = extremes(x, n)
    if high == -low:
        return _groups.largest(x, n)
    return high if high > -low else low


@compiled
def size(x, n):
    """The largest size of n float32."""
    low, high = extremes(x, n)
    return abs(high) if high > -low else abs(low)


@compiled
def range_of(x, n):
    """Least and greatest of n float32; a zero has the sign of the first zero."""
    low, high = extremes(x, n)
    if low == 0:
        first = 0
        while mem.f32(x, first) != 0:
            first += 1
        low = mem.f32(x, first)
        high = low if high == 0 else high
    return low, high


@compiled
def truncated(x, base, inverse, add, most):
    """Levels of 8 float32 at `x`: C's whole part of (x - base) * inverse + add, at most `most`."""
    value = (lanes.load(x, 0) - lanes.splat(base)) * lanes.splat(inverse)
    whole = lanes.truncate(value + lanes.splat(add))
    return lanes.minimum(whole, lanes.splat_i(most))


@compiled
def put_four_bits(x, base, inverse, add, out):
    """Levels 0 to 15 of 32 weights to 16 bytes: value j low, value j + 16 high."""
    for j in range(0, 16, 8):
        low = truncated(x + 4 * j, base, inverse, add, 15)
        high = truncated(x + 4 * (j + 16), base, inverse, add, 15)
        lanes.store_bytes(out, j, low | (high << lanes.splat_i(4)))


@compiled
def put_five_bits(x, base, inverse, add, high_bits, out):
    """Levels 0 to 31 of 32 weights: the low halves as above, the fifth bits in four bytes."""
    four, fifteen = lanes.splat_i(4), lanes.splat_i(15)
    for j in range(0, 16, 8):
        low = truncated(x + 4 * j, base, inverse, add, 31)
        high = truncated(x + 4 * (j + 16), base, inverse, add, 31)
        put_fifth(low, high, high_bits + j // 8)
        lanes.store_bytes(out, j, (low & fifteen) | ((high & fifteen) << four))


@compiled
def put_fifth(low, high, out):
    """Fifth bits of 8 values at byte 0 and of the 8 that come 16 later at byte 2."""
    sixteen = lanes.splat_i(16)
    mem.put_u8(out, 0, lanes.mask_bits((low & sixteen) == sixteen))
    mem.put_u8(out, 2, lanes.mask_bits((high & sixteen) == sixteen))


@compiled
def pack_four_bits(levels, out):
    """32 bytes of 0 to 15 to 16 bytes: value j low, value j + 16 high."""
    for j in range(0, 16, 8):
        high = lanes.load_bytes(levels, j + 16) << lanes.splat_i(4)
        lanes.store_bytes(out, j, lanes.load_bytes(levels, j) | high)


@compiled
def pack_five_bits(levels, high_bits, out):
    """32 bytes of 0 to 31: the low halves as above, the fifth bits in four bytes."""
    four, fifteen = lanes.splat_i(4), lanes.splat_i(15)
    for j in range(0, 16, 8):
        low, high = lanes.load_bytes(levels, j), lanes.load_bytes(levels, j + 16)
        put_fifth(low, high, high_bits + j // 8)
        lanes.store_bytes(out, j, (low & fifteen) | ((high & fifteen) << four))


@compiled
def columns_and_weights(row, importance, n_per_row, first, sigma2, xt, wt):
    """Transpose up to 8 blocks from block `first` on, and their weights; returns how many."""
    count = min(8, n_per_row // 32 - first)
    _groups.columns(row + 128 * first, 32, 32, count, xt)
    _groups.columns(importance + 128 * first, 32, 32, count, wt)
    _groups.put_weights(xt, wt, 32, sigma2, wt)
    return count


@compiled
def fit_scales(row, importance, n_per_row, first, sigma2, n_max, found):
    """Fit 8 blocks with importances, levels -n_max to n_max - 1: scales, inverses to `found`."""
    xt, wt = mem.local(1024), mem.local(1024)
    count = columns_and_weights(row, importance, n_per_row, first, sigma2, xt, wt)
    scale, inverse = search.fit_scale(xt, wt, 32, n_max)
    lanes.store(found, 0, scale)
    lanes.store(found, 8, inverse)
    return count


@compiled
def fit_ranges(row, importance, n_per_row, first, sigma2, n_max, found):
    """Fit 8 blocks with importances, levels 0 to n_max.

    Puts scales, minus minimums, inverses and bases to `found`.
    """
    xt, wt = mem.local(1024), mem.local(1024)
    count = columns_and_weights(row, importance, n_per_row, first, sigma2, xt, wt)
    start, step = np.float32(-0.9), np.float32(0.05)
    search.fit_scale_min(xt, wt, 32, n_max, start, step, 36, False, found, 8)
    return count
