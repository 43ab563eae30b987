"""Dot products of one weight row with one row of activations, for compiled code."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.native import compiled, mem, simd

FEW = 4  # up to so many columns, weights are read row by row; above, as panels


@compiled
def dot_row(w, row, x, k, scratch, tables):
    """One weight row of k values times one quantized row: the sum over groups of s * d * (u . x) - m * (sum of x)."""
    q, s, m, t = scratch, scratch + 256, scratch + 320, scratch + 384
    d32, s32 = act.scales_32(x, k, 1), act.sums_32(x, k, 1)
    d16, s16 = act.scales_16(x, k, 1), act.sums_16(x, k, 1)
    low = values.lowest(w)
    offset = simd.splat_i8x32(np.int8(-low))
    acc, minimum = simd.zeros_f32x8(), np.float32(0)
    for b in range(k // values.n_values(w)):
        values.unpack(w, row + b * values.n_bytes(w), q, s, m, tables)
        first = b * values.n_values(w) // 32
        for j in range(values.n_values(w) // 32):
            if values.group(w) == 32:
                scale = mem.f32(s, j)
                lanes = simd.splat_f32x8(scale * mem.f32(d32, first + j))
                minimum += (mem.f32(m, j) - scale * np.float32(low)) * mem.f32(s32, first + j)
            else:
                c, e, at = mem.f32(s, 2 * j), mem.f32(s, 2 * j + 1), 2 * (first + j)
                d = mem.f32(d16, at)
                lanes = simd.halves_f32x8(c * d, e * d)
                minimum += (mem.f32(m, 2 * j) - c * np.float32(low)) * mem.f32(s16, at)
                minimum += (mem.f32(m, 2 * j + 1) - e * np.float32(low)) * mem.f32(s16, at + 1)
            u = simd.as_unsigned(simd.load_i8x32(q + 32 * j) + offset)
            dots = simd.dot_us(u, simd.load_i8x32(x + 32 * (first + j)))
            acc = simd.fma_f32x8(simd.to_f32x8(dots), lanes, acc)
    return simd.total_f32x8(acc) - minimum


@compiled
def dot_row_signed(w, row, x, k, scratch, tables):
    """As dot_row, for numbers of the full 8 bits: no offset, signed times signed."""
    q, s, m = scratch, scratch + 256, scratch + 320
    d32, s32 = act.scales_32(x, k, 1), act.sums_32(x, k, 1)
    acc, minimum = simd.zeros_f32x8(), np.float32(0)
    for b in range(k // values.n_values(w)):
        values.unpack(w, row + b * values.n_bytes(w), q, s, m, tables)
        first = b * values.n_values(w) // 32
        for j in range(values.n_values(w) // 32):
            at = first + j
            if values.group(w) == 32:
                lanes = simd.splat_f32x8(mem.f32(s, j) * mem.f32(d32, at))
                minimum += mem.f32(m, j) * mem.f32(s32, at)
            else:
                d = mem.f32(d32, at)
                lanes = simd.halves_f32x8(mem.f32(s, 2 * j) * d, mem.f32(s, 2 * j + 1) * d)
            dots = simd.dot_ss(simd.load_i8x32(q + 32 * j), simd.load_i8x32(x + 32 * at))
            acc = simd.fma_f32x8(simd.to_f32x8(dots), lanes, acc)
    return simd.total_f32x8(acc) - minimum


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
