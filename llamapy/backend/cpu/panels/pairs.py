"""Panels of pairs: for each two values of k the two 16-bit numbers of row 0 ... of row 15 (64
bytes).

They meet activations of 16 bits: products cannot saturate, and the rounding of activations is as
good as none.
"""

from __future__ import annotations

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels.groups import ROWS, addresses, turn_rows
from llamapy.backend.cpu.step import Step
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

BYTES = 2  # a value in the panel, and an activation
COLUMNS = 1  # of activations, that lie together


def rounded(x: Tensor) -> tuple[Step, int]:
    """The step that leaves x as these panels meet it, and the bytes of one row."""
    return act.quantize_step(x, BYTES), act.row_bytes(x.ne[0], BYTES)


@compiled
def pack(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as pairs of 16-bit numbers; scales and negated minimums beside. Missing
    rows: the last."""
    q, s, m, flat = scratch, scratch + 256, scratch + 320, scratch + values.SCRATCH
    n, per = values.n_values(w), values.n_values(w) // values.group(w)
    for b in range(k // n):
        for r in range(ROWS):
            row = rows + min(r, live - 1) * stride
            values.unpack_groups(w, row + b * values.n_bytes(w), q, s, m, tables)
            for i in range(0, n, 32):
                wide = simd.widen_i16x32(simd.load_i8x32(q + i))
                simd.store_i16x32(flat + 2 * (r * n + i), wide)
            for j in range(per):
                at = (b * per + j) * ROWS + r
                mem.put_f32(s_out, at, mem.f32(s, j))
                mem.put_f32(m_out, at, -mem.f32(m, j))
        turn_rows(flat, n // 2, panel + 2 * b * n * ROWS)


@compiled
def clear(out):
    """Room for sixteen rows times four columns, before anything is added."""
    for i in range(0, 64, 16):
        simd.store_f32x16(out + 4 * i, simd.zeros_f32x16())


@compiled
def add_group(out, total, s, scale, m, sum_x, more):
    """Sixteen results of a column += total * s * scale (of x), and m * sum_x if the type has more.

    The results stay in memory: the products of a group need all registers."""
    scaled = s * simd.splat_f32x16(scale)
    c = simd.fma_f32x16(simd.to_f32x16(total), scaled, simd.load_f32x16(out))
    if more:
        c = simd.fma_f32x16(m, simd.splat_f32x16(sum_x), c)
    simd.store_f32x16(out, c)


@compiled
def four_columns(w, panel, scales, minimums, x, size, live, k, out):
    """Sixteen rows times `live` columns (four, or fewer at the end) from x on, `size` bytes apart:
    out[c, 0..15]."""
    x0, x1, x2, x3 = addresses(x, size, 0, live)
    d, t, more = act.group_scales(w, 0, k, 2), act.group_sums(w, 0, k, 2), values.has_min(w)
    clear(out)
    for g in range(k // values.group(w)):
        i0, i1, i2, i3 = (
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
            simd.zeros_i32x16(),
        )
        for step in range(values.group(w) // 2):
            place = g * values.group(w) + 2 * step
            u = simd.load_i16x32(panel + 2 * ROWS * place)
            i0 = simd.pair_step(i0, u, simd.pair_i16x32(x0 + 2 * place))
            i1 = simd.pair_step(i1, u, simd.pair_i16x32(x1 + 2 * place))
            i2 = simd.pair_step(i2, u, simd.pair_i16x32(x2 + 2 * place))
            i3 = simd.pair_step(i3, u, simd.pair_i16x32(x3 + 2 * place))
        s, m = simd.load_f32x16(scales + 64 * g), simd.load_f32x16(minimums + 64 * g)
        add_group(out, i0, s, mem.f32(x0 + d, g), m, mem.f32(x0 + t, g), more)
        add_group(out + 64, i1, s, mem.f32(x1 + d, g), m, mem.f32(x1 + t, g), more)
        add_group(out + 128, i2, s, mem.f32(x2 + d, g), m, mem.f32(x2 + t, g), more)
        add_group(out + 192, i3, s, mem.f32(x3 + d, g), m, mem.f32(x3 + t, g), more)
