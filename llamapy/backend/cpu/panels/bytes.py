"""Panels of bytes: for each four values of k the four bytes of row 0, of row 1 ... of row 15 (64
bytes).

Numbers are shifted to start at 0 and meet activations of 8 bits.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import quartets, values
from llamapy.backend.cpu.panels.groups import ROWS, store_products, turn_rows
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


# Whether the scales in a panel are integers, and the greatest of them: what sums of 16 bits, or of
# eight steps of wide ones, can be multiplied with.
integer_scales = ByType("integer_scales", lambda label: int(levels.short_sums()), 0)
top_scale = ByType(
    "top_scale", lambda t: 4095 if values.spans_more_than_seven_bits(codec.get(t)) else 32767, 0
)


@compiled(forceinline=True)
def add_steps(w, panel, x, s, d, out):
    """Some steps of products, times the scales at s (of rows) and d (of columns), to out[4, 16]."""
    if values.is_wide(w):
        if steps(w) == 8:
            simd.wide_quads_8(panel, x, s, d, out)
        else:
            simd.wide_quads_4(panel, x, s, d, out)
    elif steps(w) == 8:
        simd.quads_8(panel, x, s, d, out)
    elif steps(w) == 4:
        simd.quads_4(panel, x, s, d, out)
    elif steps(w) == 2:
        simd.quads_2(panel, x, s, d, out)
    else:
        simd.quads_1(panel, x, s, d, out)


@compiled(forceinline=True)
def add_step(w, panel, x, s, d, out):
    """`add_steps` for one of them."""
    if values.is_wide(w):
        simd.wide_quads_1(panel, x, s, d, out)
    else:
        simd.quads_1(panel, x, s, d, out)


@compiled
def make_integers(w, n, scales, minimums):
    """Scales of n groups as integers, twice in 32 bits, and minimums, both in units of the row:
    float32 [16] after the scales."""
    most, broken = simd.splat_f32x16(np.float32(1e-20)), simd.zeros_f32x16()
    for g in range(n):
        s = simd.load_f32x16(scales + 64 * g)
        most = simd.max_f32x16(simd.abs_f32x16(s), most)
        broken = broken + s * simd.zeros_f32x16()  # NaN stays NaN, which no integer is
    unit = most * simd.splat_f32x16(np.float32(1 / top_scale(w))) + broken
    simd.store_f32x16(scales + 64 * n, unit)
    inverse = simd.splat_f32x16(np.float32(1)) / unit
    low = simd.splat_f32x16(np.float32(values.lowest(w)))
    for g in range(n):
        s = simd.nearest_i32x16(simd.load_f32x16(scales + 64 * g) * inverse)
        simd.store_i32x16(scales + 64 * g, simd.twice_i32x16(s))
        # Where the minimum is a multiple of the scale: of the scale that products meet.
        m = low * simd.to_f32x16(s)
        if values.has_min(w):
            m = simd.load_f32x16(minimums + 64 * g) * inverse
        simd.store_f32x16(minimums + 64 * g, m)


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
def pack_unpacked(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """`pack` for types whose blocks are unpacked first."""
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
def pack(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as bytes from 0 (number - lowest); scales and negated minimums beside.
    Missing rows: the last."""
    if values.halves(w) > 0:
        pack_blocks(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables)
    else:
        pack_unpacked(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables)
    if integer_scales(w):
        make_integers(w, k // values.group(w), s_out, m_out)


@compiled
def start(w, n, minimums, t, out):
    """Minimums of n groups times the sums of activations."""
    a, b, c, d = simd.zeros_f32x16(), simd.zeros_f32x16(), simd.zeros_f32x16(), simd.zeros_f32x16()
    if values.has_offset(w):
        for g in range(n):
            m = simd.load_f32x16(minimums + 64 * g)
            a = simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, 4 * g)), a)
            b = simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, 4 * g + 1)), b)
            c = simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, 4 * g + 2)), c)
            d = simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, 4 * g + 3)), d)
    store_products(out, (a, b, c, d))


@compiled
def four_columns(w, panel, scales, minimums, x, size, live, k, out):
    """Sixteen rows times the four columns of a quartet at x: out[c, 0..15]."""
    n, d, more = values.group(w), quartets.scales(x, k), 4 * steps(w)
    start(w, k // n, minimums, quartets.group_sums(w, x, k), out)
    for at in range(0, k, more):
        add_steps(
            w, panel + ROWS * at, x + 4 * at, scales + 64 * (at // n), d + 16 * (at // 32), out
        )
    for i in range(quartets.n_outliers(x, k)):
        at = quartets.channel(x, k, i)
        own, digits = quartets.digit_scales(x, k, i), quartets.second_digits(x, k, i)
        add_step(w, panel + ROWS * at, digits, scales + 64 * (at // n), own, out)
    if integer_scales(w):
        unit = simd.load_f32x16(scales + 64 * (k // n))
        for i in range(0, 4 * 64, 64):
            simd.store_f32x16(out + i, unit * simd.load_f32x16(out + i))
