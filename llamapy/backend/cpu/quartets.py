"""Activations in 8 bits for four columns of a product at a time, the largest channels apart.

A quartet is four rows of k activations, side by side as a panel meets them (fewer at the end: then
the last one stands in for the others):

    int8 [k / 4, 4 rows, 4 values]
    scales float32 [k / 32, 4]; sums of the rounded values float32 [k / 32, 4] and [k / 16, 4]
    outliers: how many (int32, 64 bytes); the channel where each begins (int32); scales float32
    [k / 32, 4]; second digits int8 [k / 32, 4 rows, 4]

A few channels of a model's activations are far larger than the rest. They make the step of 8 bits
coarse for their whole block of 32, and most of a row's rounding error comes from there. So such
blocks get the step that the others ask for, and the four neighbours with the largest channel are
*outliers*: they have two digits, of which the second counts 128 steps. Products add second digits
as one more step of four.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels.groups import addresses
from llamapy.backend.cpu.step import Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, levels, mem, simd

ROWS = 4
SCRATCH = 64 + 32 + ROWS * 128
DIGIT = 128  # what the second digit counts
REACH = 127 * 127  # steps that two digits hold, neighbours together
# Four channels are taken out if the block's rounding error (root mean square, over the quartet)
# would be more than this part of the average block of its row: docs/speed.md.
TOLERANCE = 0.01


def n_bytes(k: int) -> int:
    """Bytes of a quartet, if every block has outliers."""
    return act.apart(4 * k + 16 * (k // 32 * 2 + k // 16) + 64 + (4 + 16 + 16) * (k // 32))


@compiled
def per_plane(m):
    """Quartets of a plane of m rows."""
    return (m + ROWS - 1) // ROWS


@compiled
def scales(quartet, k):
    """Address of the four scales of block 0; 16 bytes later those of the next."""
    return quartet + 4 * k


@compiled
def sums_32(quartet, k):
    """Address of the four sums of block 0."""
    return quartet + 4 * k + 16 * (k // 32)


@compiled
def sums_16(quartet, k):
    return quartet + 4 * k + 16 * (k // 32) * 2


@compiled
def group_sums(w, quartet, k):
    """Address of the four sums of the first group of a weight type."""
    return sums_32(quartet, k) if values.group(w) == 32 else sums_16(quartet, k)


@compiled
def outliers(quartet, k):
    """Address of the number of outliers, an int32."""
    return quartet + 4 * k + 16 * (k // 32 * 2 + k // 16)


@compiled
def n_outliers(quartet, k):
    return mem.i32(outliers(quartet, k), 0)


@compiled
def channel(quartet, k, i):
    """Where outlier i begins."""
    return mem.i32(outliers(quartet, k) + 64, i)


@compiled
def digit_scales(quartet, k, i):
    """Address of the four scales of outlier i's second digits."""
    return outliers(quartet, k) + 64 + 4 * (k // 32) + 16 * i


@compiled
def second_digits(quartet, k, i):
    """Address of the 16 values of outlier i."""
    return outliers(quartet, k) + 64 + (4 + 16) * (k // 32) + 16 * i


@compiled
def weight(x, k):
    """What the square of a block's step counts in the mean that must not exceed 1."""
    squares = simd.zeros_f32x16()
    for i in range(0, k, 16):
        v = simd.load_f32x16(x + 4 * i)
        squares = simd.fma_f32x16(v, v, squares)
    average = simd.total_f32x16(squares) / np.float32(k // 32)
    allowed = np.float32(TOLERANCE * TOLERANCE) * average
    return np.float32(32 / 12) / allowed if allowed > 0 else np.float32(0)


@compiled
def magnitudes(v, paired):
    """Of sixteen values, what must fit the range of the integers: paired, also the sums of
    neighbours (2 i and 2 i + 1). So these add up to `levels.PAIR_LIMIT` at most when rounded: 127,
    and a half for each."""
    if paired:
        return simd.max_f32x16(simd.abs_f32x16(v), simd.abs_f32x16(simd.pair_sums_f32x16(v)))
    return simd.abs_f32x16(v)


@compiled
def scaled(x, factor):
    """32 float32 at x, times a factor, as int8."""
    f = simd.splat_f32x16(factor)
    return simd.nearest_i8x32(simd.load_f32x16(x) * f, simd.load_f32x16(x + 64) * f)


@compiled
def peak(x, paired):
    """Sixteen lanes, of which the greatest is what 32 float32 at x ask the range to hold."""
    p = magnitudes(simd.load_f32x16(x), paired)
    return simd.max_f32x16(p, magnitudes(simd.load_f32x16(x + 64), paired))


@compiled
def round_block(x, paired, finest, quartet, k, b, scratch):
    """Block b of a quartet from its rows (at x[0] ... x[3]); its four scales, not below `finest`.
    scratch: 16 bytes."""
    most = simd.greatest_f32x4(
        peak(x[0], paired), peak(x[1], paired), peak(x[2], paired), peak(x[3], paired)
    )
    step = simd.max_f32x4(finest, most * simd.splat_f32x4(np.float32(1 / 127)))  # NaN stays NaN
    to = quartet + 128 * b
    simd.store_f32x4(scales(quartet, k) + 16 * b, step)
    simd.store_f32x4(scratch, simd.inverse_f32x4(step))
    simd.mingle_i8x32(
        scaled(x[0], mem.f32(scratch, 0)),
        scaled(x[1], mem.f32(scratch, 1)),
        scaled(x[2], mem.f32(scratch, 2)),
        scaled(x[3], mem.f32(scratch, 3)),
        to,
    )
    first, second = step * simd.totals_f32x4(to), step * simd.totals_f32x4(to + 64)
    simd.store_f32x4(sums_32(quartet, k) + 16 * b, first + second)
    simd.store_f32x4(sums_16(quartet, k) + 32 * b, first)
    simd.store_f32x4(sums_16(quartet, k) + 32 * b + 16, second)
    return step


@compiled
def worst(x, weights, scratch):
    """Which of 32 channels counts most in four rows. scratch: 128 bytes."""
    first, second = simd.zeros_f32x16(), simd.zeros_f32x16()
    for c in range(ROWS):
        w, row = simd.splat_f32x16(mem.f32(weights, c)), mem.i64(x, c)
        a, b = simd.load_f32x16(row), simd.load_f32x16(row + 64)
        first, second = simd.fma_f32x16(w * a, a, first), simd.fma_f32x16(w * b, b, second)
    simd.store_f32x16(scratch, first)
    simd.store_f32x16(scratch + 64, second)
    found, most = 0, np.float32(-1)
    for i in range(32):
        if mem.f32(scratch, i) > most:
            found, most = i, mem.f32(scratch, i)
    return found


@compiled
def put_outlier(v, at, quartet, k, i):
    """Sixteen values in steps, four of each row, as outlier i, which begins at `at`; the sums of
    each row when rounded."""
    high = simd.nearest_i32x16(v * simd.splat_f32x16(np.float32(1 / DIGIT)))
    more = simd.to_f32x16(high) * simd.splat_f32x16(np.float32(DIGIT))
    mem.put_i32(outliers(quartet, k) + 64, i, np.int32(at))
    simd.store_i8_i32x16(second_digits(quartet, k, i), high)
    low = simd.nearest_i32x16(v - more)
    simd.store_i8_i32x16(quartet + 4 * at, low)
    return simd.totals_of_fours_f32x4(simd.to_f32x16(low) + more)


@compiled
def take_out(x, paired, quartet, k, b, n, weights, scratch):
    """Outlier n, from block b, and the block anew with the step of the others. scratch: 32 + 512
    bytes."""
    rows, rest = scratch, scratch + 32
    mem.put_i64(rows, 0, x[0])
    mem.put_i64(rows, 1, x[1])
    mem.put_i64(rows, 2, x[2])
    mem.put_i64(rows, 3, x[3])
    at = worst(rows, weights, rest) // 4 * 4
    v = simd.fours_f32x16(x[0] + 4 * at, x[1] + 4 * at, x[2] + 4 * at, x[3] + 4 * at)
    finest = simd.fourths_f32x4(simd.greatest_of_fours_f32x16(magnitudes(v, paired)))
    finest = finest * simd.splat_f32x4(np.float32(1 / REACH))
    for c in range(ROWS):
        mem.copy(rest + 128 * c, mem.i64(rows, c), 128)
        simd.store_f32x4(rest + 128 * c + 4 * at, simd.splat_f32x4(np.float32(0)))
    y = rest, rest + 128, rest + 256, rest + 384
    step = round_block(y, paired, finest, quartet, k, b, rows)
    simd.store_f32x4(rows, simd.inverse_f32x4(step))
    simd.store_f32x4(digit_scales(quartet, k, n), step * simd.splat_f32x4(np.float32(DIGIT)))
    total = step * put_outlier(v * simd.four_times_f32x16(rows), 32 * b + at, quartet, k, n)
    whole, half = sums_32(quartet, k) + 16 * b, sums_16(quartet, k) + 16 * (2 * b + at // 16)
    simd.store_f32x4(whole, simd.load_f32x4(whole) + total)
    simd.store_f32x4(half, simd.load_f32x4(half) + total)


@compiled
def quantize_rows(x, k, paired, quartet, scratch):
    """Four rows of k float32, at x[0] ... x[3]. paired: as for `magnitudes`. scratch:
    SCRATCH bytes."""
    weights, more, n = scratch, scratch + 64, 0
    mem.put_f32(weights, 0, weight(x[0], k))
    mem.put_f32(weights, 1, weight(x[1], k))
    mem.put_f32(weights, 2, weight(x[2], k))
    mem.put_f32(weights, 3, weight(x[3], k))
    for b in range(k // 32):
        y = x[0] + 128 * b, x[1] + 128 * b, x[2] + 128 * b, x[3] + 128 * b
        step = round_block(y, paired, simd.zeros_f32x4(), quartet, k, b, more)
        if simd.total_f32x4(step * step * simd.load_f32x4(weights)) > np.float32(ROWS):
            take_out(y, paired, quartet, k, b, n, weights, more)
            n += 1
    mem.put_i32(outliers(quartet, k), 0, np.int32(n))


@kernel
def quantize_quartets(node, ith, nth, sync, a, b):
    """Source 1 as quartets, plane after plane, in the shared scratch; parameter 0: bytes a
    quartet, 1: whether neighbours are paired."""
    size, paired = rec.param(node, 0), rec.param(node, 1) != 0
    k, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1)
    scratch = rec.private(node, ith)
    flat = scratch + SCRATCH
    start, end = block_of(rec.n_rows(node, 1) // m * per_plane(m), ith, nth)
    for i in range(start, end):
        first = i % per_plane(m) * ROWS
        live = min(ROWS, m - first)
        x, stride = rec.row_address(node, 1, i // per_plane(m) * m + first), rec.nb(node, 1, 1)
        if rec.nb(node, 1, 0) != 4:
            for c in range(live):
                act.copy_row(x + c * stride, rec.nb(node, 1, 0), k, flat + 4 * k * c)
            x, stride = flat, 4 * k
        rows = addresses(x, stride, 0, live)
        quantize_rows(rows, k, paired, rec.shared(node) + i * size, scratch)


def quantize_step(x: Tensor) -> Step:
    """The step that leaves x as quartets in the shared scratch. Neighbours are paired where sums
    are short."""
    k, m, size = x.ne[0], x.ne[1], n_bytes(x.ne[0])
    flat = 0 if x.contiguous_rows else 4 * k * ROWS
    return Step(
        quantize_quartets,
        (None, x),
        (size, int(levels.short_sums())),
        shared=size * (x.n_rows // m * ((m + ROWS - 1) // ROWS)),
        private=SCRATCH + flat,
        leaves=(id(x), "quartets"),
    )
