"""Groups of weights as -1, 0, 1 under a scale, all shifted by an eighth up or down (IQ1).

With its values in ascending order a group is split in three: the first become -1, the last 1.
Splits, (first, last) pairs of places, are tried in ggml's order; the best has the greatest
qx * qx / qq, the weighted sums of q * x and q * q. Only then are its points moved onto the grid.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._neighbours import LISTS, PLACES
from llamapy.quants._points import nearest8

LEAST = np.float32(-3.4028234663852886e38)  # ggml's first best score


@compiled
def ascending(x, n, order):
    """Write the places of n <= 32 values in ascending order, equal ones as they come (int32)."""
    one, none = lanes.splat_i(np.int32(1)), lanes.splat_i(np.int32(0))
    ranks = mem.local(128)
    for v in range(0, n, 8):
        values, rank = lanes.load(x, v), none
        numbers = lanes.numbers() + lanes.splat_i(np.int32(v))
        lanes.store(order, v, lanes.of_bits(numbers))  # for values that are no numbers
        for i in range(n):
            other = lanes.splat(mem.f32(x, i))
            before = lanes.splat_i(np.int32(i)) < numbers
            rank = rank + lanes.select((other < values) | ((other == values) & before), one, none)
        lanes.store(ranks, v, lanes.of_bits(rank))
    for i in range(n):
        mem.put_i32(order, mem.i32(ranks, i), i)


@compiled
def put_levels(order, n, first, last, upside_down, levels):
    """Write the levels 0, 1, 2 of n values split at places first and last (bytes)."""
    for j in range(n):
        level = (j >= first) + (j >= last)
        mem.put_u8(levels, mem.i32(order, j), 2 - level if upside_down else level)


@compiled
def refit(x, w, n_points, codes, shifts, scale):
    """The best scale for the points with these codes; `scale` if none is positive."""
    qx = qq = np.float32(0)
    for i in range(8 * n_points):
        level = mem.i32(codes, i >> 3) >> 2 * (i & 7) & 3
        q = np.float32(level - 1) + mem.f32(shifts, i >> 3)
        qx += mem.f32(w, i) * q * mem.f32(x, i)
        qq += mem.f32(w, i) * q * q
    return qx / qq if qx > 0 and qq > 0 else scale


@compiled
def settle(x, w, n_points, levels, shifts, scale, search, found):
    """Move the points onto the grid: their indices to `found` (int32). Returns the scale then.

    shifts: a float32 a point, 1/8 or -1/8. NaN if a point has none near.
    """
    codes, moved, places = mem.local(16), False, mem.i64(search, PLACES)
    for k in range(n_points):
        code = np.int32(0)
        for i in range(8):
            code |= np.int32(mem.u8(levels, 8 * k + i)) << 2 * i
        place = mem.i32(places, code)
        if place < 0:
            zero, moved = mem.f32(shifts, k), True
            low, high = scale * (zero - np.float32(1)), scale * (zero + np.float32(1))
            near = mem.i64(search, LISTS) + 2 * np.int64(-1 - place)
            code = nearest8(near, x + 32 * k, w + 32 * k, low, scale * zero, high)
            if code < 0:
                return np.float32(np.nan)
            place = mem.i32(places, code)
        mem.put_i32(codes, k, code)
        mem.put_i32(found, k, place)
    return refit(x, w, n_points, codes, shifts, scale) if moved else scale
