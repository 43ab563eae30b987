"""mul_mat with many columns for weights that need 8 bits: panels of 16-bit pairs, activations in 16 bits.

As mul_mat_panel, but a panel word holds two 16-bit numbers of one row. Products cannot saturate, and activations
rounded to 16 bits are as good as exact.
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
from llamapy.native import compiled, mem, simd
from llamapy.quants import codec

OPS = ("mul_mat",)
PRIORITY = 9
ROWS = 16


@compiled
def pack_pairs(w, rows, stride, live, k, panel, s_out, m_out, scratch, tables):
    """Interleave rows as pairs of 16-bit numbers; scales and negated minimums beside. Missing rows: the last."""
    q, s, m = scratch, scratch + 256, scratch + 320
    per = values.n_values(w) // values.group(w)
    for r in range(ROWS):
        row = rows + min(r, live - 1) * stride
        for b in range(k // values.n_values(w)):
            values.unpack(w, row + b * values.n_bytes(w), q, s, m, tables)
            words = panel + 2 * b * values.n_values(w) * ROWS + 4 * r
            for i in range(values.n_values(w) // 2):
                low = np.uint32(np.uint16(np.int16(mem.i8(q, 2 * i))))
                high = np.uint32(np.uint16(np.int16(mem.i8(q, 2 * i + 1))))
                mem.put_u32(words, i * ROWS, low | (high << np.uint32(16)))
            for j in range(per):
                at = (b * per + j) * ROWS + r
                mem.put_f32(s_out, at, mem.f32(s, j))
                mem.put_f32(m_out, at, -mem.f32(m, j))


@compiled
def group_scales(w, x, k):
    return act.scales_32(x, k, 2) if values.group(w) == 32 else act.scales_16(x, k, 2)


@compiled
def group_sums(w, x, k):
    return act.sums_32(x, k, 2) if values.group(w) == 32 else act.sums_16(x, k, 2)


@compiled
def add_group(c, total, s, m, d, t, g):
    c = simd.fma_f32x16(simd.to_f32x16(total), s * simd.splat_f32x16(mem.f32(d, g)), c)
    return simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, g)), c)


@compiled
def four_columns(w, panel, scales, minimums, x0, x1, x2, x3, k, out, out_stride):
    """Sixteen rows times four columns (their rows at x0 ... x3): out[c, 0..15]."""
    d, t = group_scales(w, x0, k), group_sums(w, x0, k)
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
        for step in range(values.group(w) // 2):
            place = g * values.group(w) + 2 * step
            u = simd.load_i16x32(panel + 2 * ROWS * place)
            i0 = simd.pair_step(i0, u, simd.pair_i16x32(x0 + 2 * place))
            i1 = simd.pair_step(i1, u, simd.pair_i16x32(x1 + 2 * place))
            i2 = simd.pair_step(i2, u, simd.pair_i16x32(x2 + 2 * place))
            i3 = simd.pair_step(i3, u, simd.pair_i16x32(x3 + 2 * place))
        s, m = simd.load_f32x16(scales + 64 * g), simd.load_f32x16(minimums + 64 * g)
        c0 = add_group(c0, i0, s, m, d, t, g)
        c1 = add_group(c1, i1, s, m, d + (x1 - x0), t + (x1 - x0), g)
        c2 = add_group(c2, i2, s, m, d + (x2 - x0), t + (x2 - x0), g)
        c3 = add_group(c3, i3, s, m, d + (x3 - x0), t + (x3 - x0), g)
    simd.store_f32x16(out, c0)
    simd.store_f32x16(out + out_stride, c1)
    simd.store_f32x16(out + 2 * out_stride, c2)
    simd.store_f32x16(out + 3 * out_stride, c3)


@kernel
def mul_mat_pairs(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    x_size, tables = rec.param(node, 0), rec.param(node, 1)
    scratch = rec.private(node, ith)
    scales = scratch + values.SCRATCH
    minimums = scales + 64 * (k // values.group(w))
    tile = minimums + 64 * (k // values.group(w))
    panel = tile + 4 * 64
    per_plane = (n + ROWS - 1) // ROWS
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
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
        pack_pairs(w, rows, rec.nb(node, 1, 1), live, k, panel, scales, minimums, scratch, tables)
        for c in range(0, m, 4):
            last = m - 1 - c  # past the end: the last column again
            x0 = x + c * x_size
            x1, x2, x3 = (
                x0 + min(1, last) * x_size,
                x0 + min(2, last) * x_size,
                x0 + min(3, last) * x_size,
            )
            four_columns(w, panel, scales, minimums, x0, x1, x2, x3, k, tile, 64)
            for j in range(min(4, m - c)):
                y = out + (c + j) * rec.nb(node, 0, 1)
                if live == ROWS:
                    simd.store_f32x16(y, simd.load_f32x16(tile + 64 * j))
                else:
                    for r in range(live):
                        mem.put_f32(y, r, mem.f32(tile + 64 * j, r))
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x = node.src
    if (
        w.kind.unpack is None
        or w.kind.n_values > 256
        or not w.contiguous_rows
        or x.kind.name != "f32"
    ):
        return None
    if x.ne[1] <= FEW:
        return None
    k = x.ne[0]
    step = act.quantize_step(x, 2)
    private = values.SCRATCH + 2 * 64 * (k // w.kind.group) + 4 * 64 + 2 * ROWS * k
    params = (act.row_bytes(k, 2), codec.tables_address(w.kind))
    product = Step(
        mul_mat_pairs,
        (node, w, x),
        params,
        (w.kind.name, ""),
        step.shared,
        private,
        takes=step.leaves,
    )
    return [step, product]
