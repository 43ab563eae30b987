"""Panels of bytes: for each four values of k the four bytes of row 0, of row 1 ... of row 15 (64
bytes).

Numbers are shifted to start at 0 and meet activations of 8 bits.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import corrections, values
from llamapy.backend.cpu.panels.groups import (
    ROWS,
    add_group,
    add_products,
    no_products,
    store_products,
    turn_rows,
)
from llamapy.native import ByType, compiled, levels, mem, simd
from llamapy.quants import codec

BYTES = 1  # a value in the panel, and an activation


def _steps(label: str) -> int:
    kind = codec.get(label)
    low, high = kind.q_range
    allowed, group = levels.steps_allowed(high - low), values.group_of(kind) // 4
    if values.spans_more_than_seven_bits(kind):
        return group
    steps = 1
    while steps * 2 <= min(allowed, group):
        steps *= 2
    return steps


# How many steps of four values `quads` takes at once.
steps = ByType("steps", _steps, 0)


@compiled
def quads(w, panel, x0, x1, x2, x3):
    """The integer products of some steps, sixteen rows times four columns."""
    if values.is_wide(w):
        if steps(w) == 8:
            return simd.wide_quads_8(panel, x0, x1, x2, x3)
        return simd.wide_quads_4(panel, x0, x1, x2, x3)
    if steps(w) == 8:
        return simd.quads_8(panel, x0, x1, x2, x3)
    if steps(w) == 4:
        return simd.quads_4(panel, x0, x1, x2, x3)
    if steps(w) == 2:
        return simd.quads_2(panel, x0, x1, x2, x3)
    return simd.quads_1(panel, x0, x1, x2, x3)


@compiled
def pack_blocks(w, rows, stride, live, k, panel, s_out, m_out, flat, tables):
    """`pack` for types whose blocks of 32 come as one vector (codec: `numbers`)."""
    low = values.lowest(w)
    offset = simd.splat_u8x32(np.uint8(-low if values.is_wide(w) else 0))
    for b in range(k // 32):
        for r in range(ROWS):
            block = rows + min(r, live - 1) * stride + b * values.n_bytes(w)
            simd.store_u8x32(flat + 32 * r, values.numbers(w, block, tables) + offset)
            scale, at = mem.f16(block, 0), b * ROWS + r
            mem.put_f32(s_out, at, scale)
            if values.halves(w) == 2:
                mem.put_f32(m_out, at, mem.f16(block, 1))
            else:
                mem.put_f32(m_out, at, scale * np.float32(low))
        turn_rows(flat, 8, panel + b * 32 * ROWS)


@compiled
def pack(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as bytes from 0 (number - lowest); scales and negated minimums beside.
    Missing rows: the last."""
    if values.halves(w) > 0:
        pack_blocks(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables)
        return
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
def sums_of_group(w, panel, x):
    """The integer products of a group, sixteen rows times four columns."""
    i0, i1, i2, i3 = quads(w, panel, x[0], x[1], x[2], x[3])
    for at in range(4 * steps(w), values.group(w), 4 * steps(w)):
        a = quads(w, panel + ROWS * at, x[0] + at, x[1] + at, x[2] + at, x[3] + at)
        i0, i1, i2, i3 = i0 + a[0], i1 + a[1], i2 + a[2], i3 + a[3]
    return i0, i1, i2, i3


@compiled
def four_columns(w, panel, scales, minimums, x, tile, k, out):
    """Sixteen rows times four columns (their rows at x[0] ... x[3]) and the corrections of their
    tile: out[c, 0..15]."""
    d, t, n = act.group_scales(w, x[0], k, 1), act.group_sums(w, x[0], k, 1), values.group(w)
    c, more = no_products(), values.has_offset(w)
    for g in range(k // n):
        at = g * n
        totals = sums_of_group(w, panel + ROWS * at, (x[0] + at, x[1] + at, x[2] + at, x[3] + at))
        c = add_products(c, totals, x, scales, minimums, d, t, g, more)
    for i in range(corrections.count(tile)):
        y, d = corrections.numbers(tile, k) + 128 * i, corrections.scales(tile, k) + 16 * i
        first = corrections.block_of(tile, i) * (32 // n)
        for g in range(first, first + 32 // n):
            z = y + n * (g - first)
            totals = sums_of_group(w, panel + ROWS * n * g, (z, z + 32, z + 64, z + 96))
            s = simd.load_f32x16(scales + 64 * g)
            c = (
                add_group(c[0], totals[0], s, d, 0),
                add_group(c[1], totals[1], s, d, 1),
                add_group(c[2], totals[2], s, d, 2),
                add_group(c[3], totals[3], s, d, 3),
            )
    store_products(out, c)
