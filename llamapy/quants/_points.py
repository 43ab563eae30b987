"""The search among the points of a grid: many trial scales side by side.

Points have n_numbers (8 of three levels, or 4 of eight); level l stands for 2 l + 1. Codes, places
and lists are those of `_neighbours`. Sums are float32, one value after the other, as ggml's.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._neighbours import LISTS, PLACES

ROOM = 32  # int32 or float32 a row: a number for each trial
GREATEST = np.float32(3.4028234663852886e38)


@compiled
def free_codes(x, n_numbers, inverse, n_trials, codes):
    """For each inverse scale: the code of the point nearest to that at `x`, on the grid or not."""
    bits, most = (2, 2) if n_numbers == 8 else (3, 7)
    half, one = lanes.splat(np.float32(0.5)), lanes.splat(np.float32(1))
    for t in range(0, n_trials, 8):
        scale, code = lanes.load(inverse, t), lanes.splat_i(np.int32(0))
        for i in range(n_numbers):
            level = half * (scale * lanes.splat(mem.f32(x, i)) - one)
            level = lanes.bits(level + lanes.splat(np.float32(12582912)))  # as in nearest_int
            level = level & lanes.splat_i(np.int32(0x7FFFFF))
            level = lanes.maximum(level, lanes.splat_i(np.int32(0x400000)))
            level = lanes.minimum(level, lanes.splat_i(np.int32(0x400000 + most)))
            level = level & lanes.splat_i(np.int32(7))
            code = code | level << lanes.splat_i(np.int32(bits * i))
        lanes.store(codes, t, lanes.of_bits(code))


@compiled
def first_least(best, where, n):
    """The first of n places, `where` a lane is, with the least `best`; -1 if that is GREATEST."""
    bits = lanes.bits(best)
    least = lanes.least(bits)
    if least >= mem.bits_of_f32(GREATEST):
        return -1
    equal = bits == lanes.splat_i(np.int32(least))
    if n == 8:
        return lanes.first_lane(equal)
    return np.int64(lanes.least(lanes.select(equal, where, lanes.splat_i(np.int32(0x7FFFFFFF)))))


@compiled
def nearest8(near, x, w, a, b, c):
    """Of the list at `near`: the code with the least sum of w * (number - x) ** 2, or -1.

    The numbers of levels 0, 1, 2 are a, b, c. -1 is for no finite sum.
    """
    terms, values, weights = mem.local(96), lanes.load(x, 0), lanes.load(w, 0)
    difference = lanes.splat(a) - values
    lanes.store(terms, 0, weights * difference * difference)
    difference = lanes.splat(b) - values
    lanes.store(terms, 8, weights * difference * difference)
    difference = lanes.splat(c) - values
    lanes.store(terms, 16, weights * difference * difference)
    best, where, zero = lanes.splat(GREATEST), lanes.numbers(), lanes.splat_i(np.int32(0))
    n = np.int64(mem.u16(near, 0))
    for j in range(0, n, 8):
        code, total = lanes.load_halves(near + 2, j), lanes.splat(np.float32(0))
        for i in range(8):
            one = code << lanes.splat_i(np.int32(31 - 2 * i)) < zero
            two = code << lanes.splat_i(np.int32(30 - 2 * i)) < zero
            low = lanes.splat(mem.f32(terms, i))
            low = lanes.select(one, lanes.splat(mem.f32(terms, 8 + i)), low)
            total = total + lanes.select(two, lanes.splat(mem.f32(terms, 16 + i)), low)
        place = lanes.numbers() + lanes.splat_i(np.int32(j))
        where = lanes.select(total < best, place, where)
        best = lanes.select(total < best, total, best)
    place = first_least(best, where, n)
    return np.int32(-1) if place < 0 else np.int32(mem.u16(near + 2, place))


@compiled
def nearest4(near, x, w, scale):
    """The same for points of four numbers, (2 l + 1) * scale."""
    best, where, n = lanes.splat(GREATEST), lanes.numbers(), np.int64(mem.u16(near, 0))
    even, one = lanes.splat_i(np.int32(14)), lanes.splat_i(np.int32(1))
    for j in range(0, n, 8):
        code, total = lanes.load_halves(near + 2, j) << one, lanes.splat(np.float32(0))
        for i in range(4):
            number = lanes.to_f32((code >> lanes.splat_i(np.int32(3 * i))) & even | one)
            difference = lanes.splat(scale) * number - lanes.splat(mem.f32(x, i))
            total = total + lanes.splat(mem.f32(w, i)) * difference * difference
        place = lanes.numbers() + lanes.splat_i(np.int32(j))
        where = lanes.select(total < best, place, where)
        best = lanes.select(total < best, total, best)
    place = first_least(best, where, n)
    return np.int32(-1) if place < 0 else np.int32(mem.u16(near + 2, place))


@compiled
def on_grid(code, x, w, n_numbers, scale, search):
    """`code` if it is on the grid, else that of the near point that is nearest; -1 if none."""
    place = mem.i32(mem.i64(search, PLACES), code)
    if place >= 0:
        return code
    near = mem.i64(search, LISTS) + 2 * np.int64(-1 - place)
    if n_numbers == 4:
        return nearest4(near, x, w, scale)
    return nearest8(near, x, w, scale, scale * np.float32(3), scale * np.float32(5))


@compiled
def sums(codes, x, w, n_numbers, n_points, n_trials, out):
    """For each trial the weighted sums of q * x (a row at `out`) and of q * q (the next row).

    `codes`: for each point a row of the trials' codes.
    """
    bits = 2 if n_numbers == 8 else 3
    even, one = lanes.splat_i(np.int32((2 << bits) - 2)), lanes.splat_i(np.int32(1))
    for t in range(0, n_trials, 8):
        qx = qq = lanes.splat(np.float32(0))
        for k in range(n_points):
            code = lanes.bits(lanes.load(codes, k * ROOM + t)) << one
            for i in range(n_numbers):
                number = lanes.to_f32((code >> lanes.splat_i(np.int32(bits * i))) & even | one)
                weight = mem.f32(w, k * n_numbers + i)
                qx = qx + lanes.splat(weight * mem.f32(x, k * n_numbers + i)) * number
                qq = qq + lanes.splat(weight) * number * number
        lanes.store(out, t, qx)
        lanes.store(out, ROOM + t, qq)
