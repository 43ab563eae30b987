"""Activations in 8 bits for four columns of a product at a time, with 8 more bits where 8 are too
few.

A quartet is four rows of k activations, side by side as a panel meets them (fewer at the end: then
the last one stands in for the others):

    int8 [k / 4, 4 rows, 4 values]
    scales float32 [k / 32, 4]; sums of the rounded values float32 [k / 32, 4] and [k / 16, 4]
    corrections: how many (int32, 64 bytes); which block of 32 each one belongs to (int32); scales
    float32 [k / 32, 4]; values int8 [k / 32, 8, 4, 4]

A few channels of a model's activations are far larger than the rest. In their blocks of 32 the
step of 8 bits is coarse, and most of a row's rounding error comes from there. Such blocks get a
correction: what rounding lost, rounded to 8 bits again. Products add it as one more block.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels.groups import addresses
from llamapy.backend.cpu.step import Step, kernel
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, levels, mem, simd

ROWS = 4
SCRATCH = 64
# A block is corrected if its rounding error (root mean square, over the quartet) would be more than
# this part of the average block of its row. That leaves SmolLM2 and Gemma one block in twelve to
# correct, and a fifth or less of llama.cpp's divergence from float32 (docs/speed.md).
TOLERANCE = 0.014


def n_bytes(k: int) -> int:
    """Bytes of a quartet, if every block has a correction."""
    return act.apart(4 * k + 16 * (k // 32 * 2 + k // 16) + 64 + (4 + 16 + 128) * (k // 32))


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
def corrections(quartet, k):
    return quartet + 4 * k + 16 * (k // 32 * 2 + k // 16)


@compiled
def n_corrections(quartet, k):
    return mem.i32(corrections(quartet, k), 0)


@compiled
def corrected(quartet, k, i):
    """The number of the block that correction i belongs to."""
    return mem.i32(corrections(quartet, k) + 64, i)


@compiled
def more_scales(quartet, k, i):
    """Address of the four scales of correction i."""
    return corrections(quartet, k) + 64 + 4 * (k // 32) + 16 * i


@compiled
def more_values(quartet, k, i):
    """Address of the 128 values of correction i."""
    return corrections(quartet, k) + 64 + (4 + 16) * (k // 32) + 128 * i


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
def scaled(x, factor):
    """32 float32 at x, times a factor, as int8."""
    f = simd.splat_f32x16(factor)
    return simd.nearest_i8x32(simd.load_f32x16(x) * f, simd.load_f32x16(x + 64) * f)


@compiled
def lost(x, step, fine):
    """What 32 float32 at x lose by rounding to multiples of `step`, as int8 multiples of
    `fine`."""
    s = simd.splat_f32x16(step)
    inverse = simd.splat_f32x16(np.float32(1) / step if step > 0 else np.float32(0))
    more = simd.splat_f32x16(np.float32(1) / fine if fine > 0 else np.float32(0))
    a, b = simd.load_f32x16(x), simd.load_f32x16(x + 64)
    p = a - s * simd.to_f32x16(simd.nearest_i32x16(a * inverse))
    q = b - s * simd.to_f32x16(simd.nearest_i32x16(b * inverse))
    return simd.nearest_i8x32(p * more, q * more)


@compiled
def peak(x, paired):
    """Sixteen lanes, of which the greatest is what 32 float32 at x ask the range to hold."""
    p = act.magnitudes(simd.load_f32x16(x), paired)
    return simd.max_f32x16(p, act.magnitudes(simd.load_f32x16(x + 64), paired))


@compiled
def add_sums(numbers, step, quartet, k, b):
    """The sums of 128 numbers, times `step`, to those of block b."""
    first, second = step * simd.totals_f32x4(numbers), step * simd.totals_f32x4(numbers + 64)
    whole, halves = sums_32(quartet, k) + 16 * b, sums_16(quartet, k) + 32 * b
    simd.store_f32x4(whole, simd.load_f32x4(whole) + first + second)
    simd.store_f32x4(halves, simd.load_f32x4(halves) + first)
    simd.store_f32x4(halves + 16, simd.load_f32x4(halves + 16) + second)


@compiled
def correct(x, quartet, k, b, paired, n):
    """Correction n, of block b (its rows are at x[0] ... x[3])."""
    steps, fines, out = (
        scales(quartet, k) + 16 * b,
        more_scales(quartet, k, n),
        more_values(quartet, k, n),
    )
    fine = simd.load_f32x4(steps) * simd.splat_f32x4(np.float32(1 / 126 if paired else 1 / 254))
    simd.store_f32x4(fines, fine)
    mem.put_i32(corrections(quartet, k) + 64, n, np.int32(b))
    simd.mingle_i8x32(
        lost(x[0], mem.f32(steps, 0), mem.f32(fines, 0)),
        lost(x[1], mem.f32(steps, 1), mem.f32(fines, 1)),
        lost(x[2], mem.f32(steps, 2), mem.f32(fines, 2)),
        lost(x[3], mem.f32(steps, 3), mem.f32(fines, 3)),
        out,
    )
    add_sums(out, fine, quartet, k, b)


@compiled
def quantize_rows(x, k, paired, quartet, scratch):
    """Four rows of k float32, at x[0] ... x[3]. paired: as for `activations.magnitudes`. scratch:
    SCRATCH bytes."""
    weights, inverses, n = scratch, scratch + 16, 0
    mem.put_f32(weights, 0, weight(x[0], k))
    mem.put_f32(weights, 1, weight(x[1], k))
    mem.put_f32(weights, 2, weight(x[2], k))
    mem.put_f32(weights, 3, weight(x[3], k))
    for i in range(k // 32 + k // 16):
        simd.store_f32x4(sums_32(quartet, k) + 16 * i, simd.splat_f32x4(np.float32(0)))
    for b in range(k // 32):
        y0, y1, y2, y3 = x[0] + 128 * b, x[1] + 128 * b, x[2] + 128 * b, x[3] + 128 * b
        most = simd.greatest_f32x4(
            peak(y0, paired), peak(y1, paired), peak(y2, paired), peak(y3, paired)
        )
        step = most * simd.splat_f32x4(np.float32(1 / 127))
        simd.store_f32x4(scales(quartet, k) + 16 * b, step)
        simd.store_f32x4(inverses, simd.inverse_f32x4(step))
        simd.mingle_i8x32(
            scaled(y0, mem.f32(inverses, 0)),
            scaled(y1, mem.f32(inverses, 1)),
            scaled(y2, mem.f32(inverses, 2)),
            scaled(y3, mem.f32(inverses, 3)),
            quartet + 128 * b,
        )
        add_sums(quartet + 128 * b, step, quartet, k, b)
        if simd.total_f32x4(step * step * simd.load_f32x4(weights)) > np.float32(ROWS):
            correct((y0, y1, y2, y3), quartet, k, b, paired, n)
            n += 1
    mem.put_i32(corrections(quartet, k), 0, np.int32(n))


@kernel
def quantize_quartets(node, ith, nth, sync, a, b):
    """Source 1 as quartets, plane after plane, in the shared scratch; parameter 0: bytes a
    quartet, 1: whether neighbours are paired."""
    size, paired = rec.param(node, 0), rec.param(node, 1) != 0
    k, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1)
    scratch = rec.private(node, ith)
    flat = scratch + SCRATCH
    for i in range(ith, rec.n_rows(node, 1) // m * per_plane(m), nth):
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
