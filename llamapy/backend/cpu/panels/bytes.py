"""Panels of bytes: for each four values of k the four bytes of row 0, of row 1 ... of row 15 (64
bytes).

Numbers are shifted to start at 0 and meet activations of 8 bits. For types that span at most 127.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels.groups import (
    ROWS,
    add_group,
    add_minimum,
    group_scales,
    group_sums,
    turn_rows,
)
from llamapy.native import ByType, compiled, mem, simd
from llamapy.quants import codec

BYTES = 1  # a value in the panel, and an activation


def _steps(label: str) -> int:
    from llamapy.native.simd.dots import steps_allowed

    low, high = codec.get(label).q_range
    allowed, group = steps_allowed(high - low), values.group_of(codec.get(label)) // 4
    steps = 1
    while steps * 2 <= min(allowed, group):
        steps *= 2
    return steps


# How many steps of four values are summed before the sum is widened.
steps = ByType("steps", _steps, 0)


@compiled
def pack(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as bytes from 0 (number - lowest); scales and negated minimums beside.
    Missing rows: the last."""
    q, s, m, flat = scratch, scratch + 256, scratch + 320, scratch + values.SCRATCH
    low, n = values.lowest(w), values.n_values(w)
    offset, per = simd.splat_i8x32(np.int8(-low)), n // values.group(w)
    for b in range(k // n):
        for r in range(ROWS):
            row = rows + min(r, live - 1) * stride
            values.unpack_groups(w, row + b * values.n_bytes(w), q, s, m, tables)
            for i in range(0, n, 32):
                simd.store_i8x32(flat + r * n + i, simd.load_i8x32(q + i) + offset)
            for j in range(per):
                scale, at = mem.f32(s, j), (b * per + j) * ROWS + r
                mem.put_f32(s_out, at, scale)
                mem.put_f32(m_out, at, scale * np.float32(low) - mem.f32(m, j))
        turn_rows(flat, n // 4, panel + b * n * ROWS)


@compiled
def four_columns(w, panel, scales, minimums, x0, x1, x2, x3, k, out):
    """Sixteen rows times four columns: out[c, 0..15]."""
    d, t = group_scales(w, x0, k, 1), group_sums(w, x0, k, 1)
    c0, c1, c2, c3 = (
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
    )
    for g in range(k // values.group(w)):
        i0, i1, i2, i3 = (
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
        )
        at = g * values.group(w)
        for part in range(values.group(w) // 4 // steps(w)):
            a0, a1, a2, a3 = simd.dot_start(), simd.dot_start(), simd.dot_start(), simd.dot_start()
            for step in range(steps(w)):
                place = at + 4 * (part * steps(w) + step)
                u = simd.load_u8x64(panel + ROWS * place)
                a0 = simd.dot_step(a0, u, simd.quad_i8x64(x0 + place))
                a1 = simd.dot_step(a1, u, simd.quad_i8x64(x1 + place))
                a2 = simd.dot_step(a2, u, simd.quad_i8x64(x2 + place))
                a3 = simd.dot_step(a3, u, simd.quad_i8x64(x3 + place))
            i0, i1 = i0 + simd.dot_end(a0), i1 + simd.dot_end(a1)
            i2, i3 = i2 + simd.dot_end(a2), i3 + simd.dot_end(a3)
        s = simd.load_f32x16(scales + 64 * g)
        c0 = add_group(c0, i0, s, d, g)
        c1 = add_group(c1, i1, s, d + (x1 - x0), g)
        c2 = add_group(c2, i2, s, d + (x2 - x0), g)
        c3 = add_group(c3, i3, s, d + (x3 - x0), g)
        if values.has_offset(w):
            m = simd.load_f32x16(minimums + 64 * g)
            c0 = add_minimum(c0, m, t, g)
            c1 = add_minimum(c1, m, t + (x1 - x0), g)
            c2 = add_minimum(c2, m, t + (x2 - x0), g)
            c3 = add_minimum(c3, m, t + (x3 - x0), g)
    simd.store_f32x16(out, c0)
    simd.store_f32x16(out + 64, c1)
    simd.store_f32x16(out + 128, c2)
    simd.store_f32x16(out + 192, c3)
