"""Dot products of one weight row with one row of activations, for compiled code."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.native import compiled, mem, simd

# Bytes that are asked for ahead: what the processor reads ahead by itself ends with a page.
AHEAD = 2048


def row_scratch(k: int) -> int:
    """Bytes of scratch that a weight row of k values needs: numbers, scales, minimums, and 64 for
    scaled scales."""
    return k + 2 * 4 * (k // 16 + 16) + 64 + 64


@compiled
def fill(w, row, k, q, s, m, tables):
    """Unpack a row: k numbers, and a scale and a minimum a group; sixteen zeros after these.

    The whole row at once, because what has been written in small pieces must be out of the store
    buffer before it can
    be read in large ones.
    """
    per_block = values.n_values(w) // values.group(w)
    for b in range(k // values.n_values(w)):
        at, block = 4 * b * per_block, row + b * values.n_bytes(w)
        for line in range(0, values.n_bytes(w), 64):
            simd.prefetch(block + AHEAD + line)
        values.unpack_groups(w, block, q + b * values.n_values(w), s + at, m + at, tables)
    end = 4 * (k // values.group(w))
    simd.store_f32x16(s + end, simd.zeros_f32x16())
    simd.store_f32x16(m + end, simd.zeros_f32x16())


@compiled
def group_dots(w, q, x):
    """Eight partial sums of 32 products, in float32."""
    if values.is_wide(w):
        return simd.to_f32x8(simd.dot_ss(simd.load_i8x32(q), simd.load_i8x32(x)))
    offset = simd.splat_i8x32(np.int8(-values.lowest(w)))
    u = simd.as_unsigned(simd.load_i8x32(q) + offset)
    return simd.to_f32x8(simd.dot_us(u, simd.load_i8x32(x)))


@compiled
def scaled_groups(w, s, m, d, sums, t, acc):
    """Eight groups at once: t = scale * (scale of x); acc minus minimum * (sum of x)."""
    scale = simd.load_f32x8(s)
    simd.store_f32x8(t, scale * simd.load_f32x8(d))
    if values.has_offset(w):
        low = simd.splat_f32x8(np.float32(0 if values.is_wide(w) else values.lowest(w)))
        minimum = scale * low - simd.load_f32x8(m)
        acc = simd.fma_f32x8(minimum, simd.load_f32x8(sums), acc)
    return acc


@compiled
def dot_filled(w, q, s, m, t, x, k):
    """The products of an unpacked row with a quantized row."""
    a, b = simd.zeros_f32x8(), simd.zeros_f32x8()
    d, sums = act.group_scales(w, x, k, 1), act.group_sums(w, x, k, 1)
    for run in range((k + 255) // 256):
        at = 32 * run * (32 // values.group(w))
        a = scaled_groups(w, s + at, m + at, d + at, sums + at, t, a)
        if values.group(w) == 16:
            b = scaled_groups(w, s + at + 32, m + at + 32, d + at + 32, sums + at + 32, t + 32, b)
        y, z = q + 256 * run, x + 256 * run
        if k - 256 * run >= 256:
            for j in range(0, 8, 2):
                a = simd.fma_f32x8(group_dots(w, y + 32 * j, z + 32 * j), lane_scales(w, t, j), a)
                b = simd.fma_f32x8(
                    group_dots(w, y + 32 * j + 32, z + 32 * j + 32), lane_scales(w, t, j + 1), b
                )
        else:
            for j in range((k - 256 * run) // 32):
                a = simd.fma_f32x8(group_dots(w, y + 32 * j, z + 32 * j), lane_scales(w, t, j), a)
    return simd.total_f32x8(a + b)


@compiled
def lane_scales(w, t, j):
    if values.group(w) == 32:
        return simd.splat_f32x8(mem.f32(t, j))
    return simd.halves_f32x8(mem.f32(t, 2 * j), mem.f32(t, 2 * j + 1))


@compiled
def dot_columns(w, row, x, x_size, m, k, scratch, tables, out, out_stride, r):
    """One weight row of k values times m quantized rows: out[c, r]. The row is unpacked once for
    all, or for four."""
    if values.halves(w) > 0 and (values.is_wide(w) or m >= 4):
        fours = m // 4 * 4
        for c in range(0, fours, 4):
            y = out + c * out_stride
            four_dots(w, row, x + c * x_size, x_size, k, tables, y, out_stride, r)
        for c in range(fours, m):
            mem.put_f32(out + c * out_stride, r, dot_blocks(w, row, x + c * x_size, k, tables))
        return
    t, q = scratch, scratch + 64
    s = q + k
    minimums = s + 4 * (k // 16 + 16)
    fill(w, row, k, q, s, minimums, tables)
    for c in range(m):
        mem.put_f32(out + c * out_stride, r, dot_filled(w, q, s, minimums, t, x + c * x_size, k))


@compiled
def block_dots(w, block, x, pair, tables, a, p):
    """Add a block of 32 to the running sums of a row: products to the lanes of `a`, terms of the
    block that do not depend on its numbers to lane 1 of `p`."""
    if values.halves(w) == 2:
        d = simd.halves_times_f32x4(block, pair)
    else:
        d = simd.half_times_f32x4(block, pair)
    numbers = values.numbers(w, block, tables)
    if values.is_wide(w):
        products = simd.to_f32x8(simd.dot_ss(simd.as_signed(numbers), simd.load_i8x32(x)))
    else:
        products = simd.to_f32x8(simd.dot_us(numbers, simd.load_i8x32(x)))
    return simd.fma_f32x8(products, simd.first_f32x8(d), a), p + d


@compiled
def row_total(w, a, p):
    """The product of a row from its running sums."""
    if values.is_wide(w):
        return simd.total_f32x8(a)
    low = np.float32(1 if values.halves(w) == 2 else values.lowest(w))
    return simd.total_f32x8(a) + low * simd.second_f32x4(p)


@compiled(forceinline=True)
def dot_blocks(w, row, x, k, tables):
    """A weight row in blocks of 32 (codec: `numbers`) times a quantized row, straight from memory.

    Row after row: neighbours lie in one page, where the processor reads ahead for one only (see
    `dot_pairs`).
    """
    pairs, size, n = act.pairs_32(x, k, 1), values.n_bytes(w), k // 32
    a, b, p, q = simd.zeros_f32x8(), simd.zeros_f32x8(), simd.zeros_f32x4(), simd.zeros_f32x4()
    for i in range(0, n - 1, 2):
        block, y, pair = row + size * i, x + 32 * i, pairs + 8 * i
        simd.prefetch(block + AHEAD)
        a, p = block_dots(w, block, y, pair, tables, a, p)
        b, q = block_dots(w, block + size, y + 32, pair + 8, tables, b, q)
    if n % 2 == 1:
        at = n - 1
        a, p = block_dots(w, row + size * at, x + 32 * at, pairs + 8 * at, tables, a, p)
    return row_total(w, a + b, p + q)


@compiled
def four_dots(w, row, x, x_size, k, tables, out, out_stride, r):
    """`dot_blocks` with four columns, side by side: out[0..3, r]. The numbers of a block are made
    once."""
    pairs, n = act.pairs_32(x, k, 1), k // 32
    a0, a1, a2, a3 = (
        simd.zeros_f32x8(),
        simd.zeros_f32x8(),
        simd.zeros_f32x8(),
        simd.zeros_f32x8(),
    )
    p0, p1, p2, p3 = (
        simd.zeros_f32x4(),
        simd.zeros_f32x4(),
        simd.zeros_f32x4(),
        simd.zeros_f32x4(),
    )
    for i in range(n):
        block, y, pair = row + values.n_bytes(w) * i, x + 32 * i, pairs + 8 * i
        simd.prefetch(block + AHEAD)
        a0, p0 = block_dots(w, block, y, pair, tables, a0, p0)
        a1, p1 = block_dots(w, block, y + x_size, pair + x_size, tables, a1, p1)
        a2, p2 = block_dots(w, block, y + 2 * x_size, pair + 2 * x_size, tables, a2, p2)
        a3, p3 = block_dots(w, block, y + 3 * x_size, pair + 3 * x_size, tables, a3, p3)
    mem.put_f32(out, r, row_total(w, a0, p0))
    mem.put_f32(out + out_stride, r, row_total(w, a1, p1))
    mem.put_f32(out + 2 * out_stride, r, row_total(w, a2, p2))
    mem.put_f32(out + 3 * out_stride, r, row_total(w, a3, p3))


@compiled
def dot_large_blocks(w, row, x, k, tables):
    """A weight row in blocks of 256 (codec: `dot`) times a quantized row, straight from memory."""
    acc, size = simd.zeros_f32x8(), 1024 // values.group(w)
    records, sums = act.records_256(x, k, 1), act.group_sums(w, x, k, 1)
    for i in range(k // 256):
        block = row + values.n_bytes(w) * i
        for line in range(0, values.n_bytes(w), 64):
            simd.prefetch(block + AHEAD + line)
        acc = acc + values.dot(w, block, x + 256 * i, records + 64 * i, sums + size * i, tables)
    return simd.total_f32x8(acc)


@compiled(forceinline=True)  # a call for each row is much where rows are short
def dot_row(w, row, x, k, scratch, tables):
    """A weight row times a quantized row, the fastest way that its type offers."""
    if values.halves(w) > 0:
        return dot_blocks(w, row, x, k, tables)
    if values.has_dot(w):
        return dot_large_blocks(w, row, x, k, tables)
    t, q = scratch, scratch + 64
    s = q + k
    minimums = s + 4 * (k // 16 + 16)
    fill(w, row, k, q, s, minimums, tables)
    return dot_filled(w, q, s, minimums, t, x, k)


@compiled
def dot(w, row, stride, x, k):
    """Sum of k products; the elements of `row` are `stride` bytes apart, those of x side by
    side."""
    a, b = simd.zeros_f32x16(), simd.zeros_f32x16()
    size = values.n_bytes(w)
    whole = k // 32 * 32 if stride == size else 0
    for i in range(0, whole, 32):
        a = simd.fma_f32x16(values.load_16(w, row + size * i), simd.load_f32x16(x + 4 * i), a)
        b = simd.fma_f32x16(
            values.load_16(w, row + size * (i + 16)), simd.load_f32x16(x + 4 * i + 64), b
        )
    total = simd.total_f32x16(a + b)
    for i in range(whole, k):
        total += values.load_1(w, row + stride * i, 0) * mem.f32(x, i)
    return total
