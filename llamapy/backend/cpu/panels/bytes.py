"""Panels of bytes: for each four values of k the four bytes of row 0, of row 1 ... of row 15 (64
bytes).

Numbers are shifted to start at 0 and meet activations of 8 bits.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import quartets, values
from llamapy.backend.cpu.panels.groups import ROWS, add_group, clear, turn_rows
from llamapy.backend.cpu.step import Step
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, levels, mem, simd
from llamapy.quants import codec

BYTES = 1  # a value in the panel, and an activation
COLUMNS = 4  # of activations, that lie together


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


def rounded(x: Tensor) -> tuple[Step, int]:
    """The step that leaves x as these panels meet it, and the bytes of one quartet."""
    return quartets.quantize_step(x), quartets.n_bytes(x.ne[0])


@compiled
def quads(w, panel, x):
    """The integer products of some steps, sixteen rows times four columns."""
    if values.is_wide(w):
        if steps(w) == 8:
            return simd.wide_quads_8(panel, x)
        return simd.wide_quads_4(panel, x)
    if steps(w) == 8:
        return simd.quads_8(panel, x)
    if steps(w) == 4:
        return simd.quads_4(panel, x)
    if steps(w) == 2:
        return simd.quads_2(panel, x)
    return simd.quads_1(panel, x)


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
def one_quad(w, panel, x):
    """The integer products of one step."""
    return simd.wide_quads_1(panel, x) if values.is_wide(w) else simd.quads_1(panel, x)


@compiled
def sums_of_group(w, panel, x):
    """The integer products of a group, sixteen rows times four columns."""
    i0, i1, i2, i3 = quads(w, panel, x)
    for at in range(4 * steps(w), values.group(w), 4 * steps(w)):
        a = quads(w, panel + ROWS * at, x + 4 * at)
        i0, i1, i2, i3 = i0 + a[0], i1 + a[1], i2 + a[2], i3 + a[3]
    return i0, i1, i2, i3


@compiled
def add_columns(out, i, s, d, m, t, more):
    """`add_group` for four columns; d and t: addresses of their scales and sums."""
    add_group(out, i[0], s, mem.f32(d, 0), m, mem.f32(t, 0), more)
    add_group(out + 64, i[1], s, mem.f32(d, 1), m, mem.f32(t, 1), more)
    add_group(out + 128, i[2], s, mem.f32(d, 2), m, mem.f32(t, 2), more)
    add_group(out + 192, i[3], s, mem.f32(d, 3), m, mem.f32(t, 3), more)


@compiled
def four_columns(w, panel, scales, minimums, x, size, live, k, out):
    """Sixteen rows times the four columns of a quartet at x: out[c, 0..15]."""
    n, d, t = values.group(w), quartets.scales(x, k), quartets.group_sums(w, x, k)
    clear(out)
    for g in range(k // n):
        totals = sums_of_group(w, panel + ROWS * n * g, x + 4 * n * g)
        s, m = simd.load_f32x16(scales + 64 * g), simd.load_f32x16(minimums + 64 * g)
        add_columns(out, totals, s, d + 16 * (n * g // 32), m, t + 16 * g, values.has_offset(w))
    for i in range(quartets.n_outliers(x, k)):
        at, d = quartets.channel(x, k, i), quartets.own_scales(x, k, i)
        totals = one_quad(w, panel + ROWS * at, quartets.own_values(x, k, i))
        s = simd.load_f32x16(scales + 64 * (at // n))
        add_columns(out, totals, s, d, s, t, False)
