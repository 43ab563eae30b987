"""Dot products of one weight row with one row of activations, for compiled code."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.native import compiled, mem, simd

FEW = 8  # up to so many columns, weights are read row by row; above, as panels


@compiled
def fill(w, row, b, live, q, s, m, tables):
    """Unpack the b-th run of 256 values of a row (`live` of them exist): numbers, and a scale and minimum a group."""
    per_block = values.n_values(w) // values.group(w)
    for i in range(live // values.n_values(w)):
        block = row + (b * (256 // values.n_values(w)) + i) * values.n_bytes(w)
        at = 4 * i * per_block
        values.unpack(w, block, q + i * values.n_values(w), s + at, m + at, tables)
    for i in range(live // values.group(w), 256 // values.group(w)):
        mem.put_f32(s, i, np.float32(0))
        mem.put_f32(m, i, np.float32(0))


@compiled
def group_dots(w, q, x):
    """Eight partial sums of 32 products, in float32."""
    if values.is_wide(w):
        return simd.to_f32x8(simd.dot_ss(simd.load_i8x32(q), simd.load_i8x32(x)))
    offset = simd.splat_i8x32(np.int8(-values.lowest(w)))
    u = simd.as_unsigned(simd.load_i8x32(q) + offset)
    return simd.to_f32x8(simd.dot_us(u, simd.load_i8x32(x)))


@compiled
def scaled_groups(w, q, s, m, t, d, sums, half, acc):
    """Eight groups at once: t = scale * (scale of x); acc minus minimum * (sum of x)."""
    scale = simd.load_f32x8(s + 32 * half)
    simd.store_f32x8(t + 32 * half, scale * simd.load_f32x8(d + 32 * half))
    if values.has_offset(w):
        low = simd.splat_f32x8(np.float32(0 if values.is_wide(w) else values.lowest(w)))
        minimum = scale * low - simd.load_f32x8(m + 32 * half)
        acc = simd.fma_f32x8(minimum, simd.load_f32x8(sums + 32 * half), acc)
    return acc


@compiled
def add_run(w, q, s, m, t, x, k, b, live, acc):
    """acc + the products of a run of 256 values (unpacked at q, s, m) with the same run of a quantized row."""
    if values.group(w) == 32:
        d, sums = act.scales_32(x, k, 1) + 32 * b, act.sums_32(x, k, 1) + 32 * b
        acc = scaled_groups(w, q, s, m, t, d, sums, 0, acc)
    else:
        d, sums = act.scales_16(x, k, 1) + 64 * b, act.sums_16(x, k, 1) + 64 * b
        acc = scaled_groups(w, q, s, m, t, d, sums, 0, acc)
        acc = scaled_groups(w, q, s, m, t, d, sums, 1, acc)
    other, n, x = simd.zeros_f32x8(), live // 32, x + 256 * b
    for j in range(0, n - 1, 2):
        acc = simd.fma_f32x8(group_dots(w, q + 32 * j, x + 32 * j), lane_scales(w, t, j), acc)
        other = simd.fma_f32x8(group_dots(w, q + 32 * j + 32, x + 32 * j + 32), lane_scales(w, t, j + 1), other)
    if n % 2 == 1:
        acc = simd.fma_f32x8(group_dots(w, q + 32 * n - 32, x + 32 * n - 32), lane_scales(w, t, n - 1), acc)
    return acc + other


@compiled
def lane_scales(w, t, j):
    if values.group(w) == 32:
        return simd.splat_f32x8(mem.f32(t, j))
    return simd.halves_f32x8(mem.f32(t, 2 * j), mem.f32(t, 2 * j + 1))


@compiled
def dot_columns(w, row, x, x_size, m, k, scratch, tables, out, out_stride, r):
    """One weight row of k values times m (up to FEW) quantized rows: out[c, r]. A run is unpacked once for all."""
    q, s, mins, t, accs = scratch, scratch + 256, scratch + 320, scratch + 384, scratch + 448
    for c in range(m):
        simd.store_f32x8(accs + 32 * c, simd.zeros_f32x8())
    for b in range((k + 255) // 256):
        live = min(256, k - 256 * b)
        fill(w, row, b, live, q, s, mins, tables)
        for c in range(m):
            acc = simd.load_f32x8(accs + 32 * c)
            simd.store_f32x8(accs + 32 * c, add_run(w, q, s, mins, t, x + c * x_size, k, b, live, acc))
    for c in range(m):
        mem.put_f32(out + c * out_stride, r, simd.total_f32x8(simd.load_f32x8(accs + 32 * c)))


@compiled
def dot(w, row, stride, x, k):
    """Sum of k products; the elements of `row` are `stride` bytes apart, those of x side by side."""
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
