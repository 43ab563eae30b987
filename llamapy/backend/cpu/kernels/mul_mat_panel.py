"""mul_mat with many columns (prefill) on integers: sixteen weight rows are unpacked and interleaved once, then meet
every column.

A panel holds for each four values of k the four bytes of row 0, of row 1 ... of row 15 (64 bytes, one or two
registers), and for each group the sixteen scales and minimums. It stays in first- or second-level cache while all
columns stream past, four at a time. Weights whose numbers span more than 127 use 16-bit pairs instead of bytes.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.dots import FEW
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, mem, simd
from llamapy.quants import codec

OPS = ("mul_mat",)
PRIORITY = 10
ROWS = 16


def _steps(label: str) -> int:
    from llamapy.native.simd.dots import steps_allowed

    low, high = codec.get(label).q_range
    allowed, group = steps_allowed(high - low), (codec.get(label).group or 32) // 4
    steps = 1
    while steps * 2 <= min(allowed, group):
        steps *= 2
    return steps


# How many steps of four values are summed before the sum is widened.
steps = ByType("steps", _steps, 0)


@compiled
def pack_bytes(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as bytes from 0 (number - lowest); scales and negated minimums beside. Missing rows: the last."""
    q, s, m = scratch, scratch + 256, scratch + 320
    low = values.lowest(w)
    offset = simd.splat_i8x32(np.int8(-low))
    per = values.n_values(w) // values.group(w)
    for r in range(ROWS):
        row = rows + min(r, live - 1) * stride
        for b in range(k // values.n_values(w)):
            values.unpack(w, row + b * values.n_bytes(w), q, s, m, tables)
            for i in range(0, values.n_values(w), 32):
                simd.store_i8x32(q + i, simd.load_i8x32(q + i) + offset)
            words = panel + b * values.n_values(w) * ROWS + 4 * r
            for i in range(values.n_values(w) // 4):
                mem.put_u32(words, i * ROWS, mem.u32(q, i))
            for j in range(per):
                scale, at = mem.f32(s, j), (b * per + j) * ROWS + r
                mem.put_f32(s_out, at, scale)
                mem.put_f32(m_out, at, scale * np.float32(low) - mem.f32(m, j))


@compiled
def group_scales(w, x, k, size):
    return act.scales_32(x, k, size) if values.group(w) == 32 else act.scales_16(x, k, size)


@compiled
def group_sums(w, x, k, size):
    return act.sums_32(x, k, size) if values.group(w) == 32 else act.sums_16(x, k, size)


@compiled
def four_columns(w, panel, scales, minimums, x, x_size, k, out, out_stride):
    """Sixteen rows times four columns: out[c, 0..15]."""
    x0, x1, x2, x3 = x, x + x_size, x + 2 * x_size, x + 3 * x_size
    d, t = group_scales(w, x, k, 1), group_sums(w, x, k, 1)
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
        s, m = simd.load_f32x16(scales + 64 * g), simd.load_f32x16(minimums + 64 * g)
        c0 = add_group(c0, i0, s, m, d, t, g)
        c1 = add_group(c1, i1, s, m, d + x_size, t + x_size, g)
        c2 = add_group(c2, i2, s, m, d + 2 * x_size, t + 2 * x_size, g)
        c3 = add_group(c3, i3, s, m, d + 3 * x_size, t + 3 * x_size, g)
    simd.store_f32x16(out, c0)
    simd.store_f32x16(out + out_stride, c1)
    simd.store_f32x16(out + 2 * out_stride, c2)
    simd.store_f32x16(out + 3 * out_stride, c3)


@compiled
def one_column(w, panel, scales, minimums, x, k, out):
    d, t = group_scales(w, x, k, 1), group_sums(w, x, k, 1)
    c = simd.zeros_f32x16()
    for g in range(k // values.group(w)):
        total = simd.zeros_i32x16()
        for part in range(values.group(w) // 4 // steps(w)):
            a = simd.dot_start()
            for step in range(steps(w)):
                place = g * values.group(w) + 4 * (part * steps(w) + step)
                a = simd.dot_step(
                    a, simd.load_u8x64(panel + ROWS * place), simd.quad_i8x64(x + place)
                )
            total = total + simd.dot_end(a)
        s, m = simd.load_f32x16(scales + 64 * g), simd.load_f32x16(minimums + 64 * g)
        c = add_group(c, total, s, m, d, t, g)
    simd.store_f32x16(out, c)


@compiled
def add_group(c, total, s, m, d, t, g):
    """c + total * scale * (scale of x) + minimum * (sum of x), all in sixteen lanes."""
    c = simd.fma_f32x16(simd.to_f32x16(total), s * simd.splat_f32x16(mem.f32(d, g)), c)
    return simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, g)), c)


@kernel
def mul_mat_panel(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    x_size, tables = rec.param(node, 0), rec.param(node, 1)
    scratch = rec.private(node, ith)
    scales = scratch + values.SCRATCH
    minimums = scales + 64 * (k // values.group(w))
    tile = minimums + 64 * (k // values.group(w))
    panel = tile + 4 * 64
    per_plane = (n + ROWS - 1) // ROWS
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    out_stride = rec.nb(node, 0, 1)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * ROWS
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = rec.data(node, 1) + i2 * rec.ne(node, 1, 2) // rec.ne(node, 2, 2) * rec.nb(
            node, 1, 2
        )
        rows += i3 * rec.ne(node, 1, 3) // rec.ne(node, 2, 3) * rec.nb(node, 1, 3)
        rows += first * rec.nb(node, 1, 1)
        out = rec.data(node, 0) + i2 * rec.nb(node, 0, 2) + i3 * rec.nb(node, 0, 3) + 4 * first
        x = rec.shared(node) + plane * m * x_size
        live = min(ROWS, n - first)
        pack_bytes(w, rows, rec.nb(node, 1, 1), live, k, panel, scales, minimums, scratch, tables)
        fours = m // 4 * 4
        for c in range(0, fours, 4):
            if live == ROWS:
                four_columns(
                    w,
                    panel,
                    scales,
                    minimums,
                    x + c * x_size,
                    x_size,
                    k,
                    out + c * out_stride,
                    out_stride,
                )
            else:
                four_columns(w, panel, scales, minimums, x + c * x_size, x_size, k, tile, 64)
                copy_live(tile, out + c * out_stride, out_stride, 4, live)
        for c in range(fours, m):
            one_column(w, panel, scales, minimums, x + c * x_size, k, tile)
            copy_live(tile, out + c * out_stride, out_stride, 1, live)
        chunk = next_chunk(node, sync)


@compiled
def copy_live(tile, out, out_stride, columns, live):
    for c in range(columns):
        for r in range(live):
            mem.put_f32(out + c * out_stride, r, mem.f32(tile + 64 * c, r))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x = node.src
    if (
        w.kind.unpack is None
        or w.kind.n_values > 256
        or not w.contiguous_rows
        or x.kind.name != "f32"
    ):
        return None
    if x.ne[1] <= FEW or values.spans_more_than_seven_bits(w.kind):
        return None
    k = x.ne[0]
    step = act.quantize_step(x, 1)
    private = values.SCRATCH + 2 * 64 * (k // w.kind.group) + 4 * 64 + ROWS * k
    params = (act.row_bytes(k, 1), codec.tables_address(w.kind))
    product = Step(
        mul_mat_panel,
        (node, w, x),
        params,
        (w.kind.name, ""),
        step.shared,
        private,
        takes=step.leaves,
    )
    return [step, product]
