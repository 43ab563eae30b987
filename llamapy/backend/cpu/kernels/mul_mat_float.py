"""mul_mat of F32, F16 and BF16 weights (and of caches and other matrices in those types), in
float32.

Few columns: dot products along the rows. Many: sixteen rows are interleaved as float32 once and
meet four columns at a
time. Rows of either source may lie anywhere; elements of a weight row, too (a transposed view).
"""

from __future__ import annotations

from llamapy.backend.cpu import dots, values
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.dots import FEW
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("mul_mat",)
PRIORITY = 5
ROWS = 16


@compiled
def pack(w, rows, stride, element, live, k, panel):
    """Interleave rows: panel[k, 16] float32. Missing rows: the last."""
    for r in range(ROWS):
        row = rows + min(r, live - 1) * stride
        for i in range(k):
            mem.put_f32(panel, i * ROWS + r, values.load_1(w, row + element * i, 0))


@compiled
def four_columns(panel, x0, x1, x2, x3, k, tile):
    c0, c1, c2, c3 = (
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
        simd.zeros_f32x16(),
    )
    for i in range(k):
        w = simd.load_f32x16(panel + 64 * i)
        c0 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x0, i)), c0)
        c1 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x1, i)), c1)
        c2 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x2, i)), c2)
        c3 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x3, i)), c3)
    simd.store_f32x16(tile, c0)
    simd.store_f32x16(tile + 64, c1)
    simd.store_f32x16(tile + 128, c2)
    simd.store_f32x16(tile + 192, c3)


@compiled
def flat_row(node, x, k, scratch):
    """The address of row x as float32 side by side (copied to scratch if its elements are
    apart)."""
    if rec.nb(node, 2, 0) == 4:
        return x
    for i in range(k):
        mem.put_f32(scratch, i, mem.f32(x + i * rec.nb(node, 2, 0), 0))
    return scratch


@compiled
def plane_of_weights(node, i2, i3):
    rows = rec.data(node, 1) + i2 * rec.ne(node, 1, 2) // rec.ne(node, 2, 2) * rec.nb(node, 1, 2)
    return rows + i3 * rec.ne(node, 1, 3) // rec.ne(node, 2, 3) * rec.nb(node, 1, 3)


@kernel
def mul_mat_float_few(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    scratch = rec.private(node, ith)
    per_plane = (n + 31) // 32
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * 32
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = plane_of_weights(node, i2, i3)
        for c in range(m):
            x = (
                rec.data(node, 2)
                + c * rec.nb(node, 2, 1)
                + i2 * rec.nb(node, 2, 2)
                + i3 * rec.nb(node, 2, 3)
            )
            x = flat_row(node, x, k, scratch)
            y = (
                rec.data(node, 0)
                + c * rec.nb(node, 0, 1)
                + i2 * rec.nb(node, 0, 2)
                + i3 * rec.nb(node, 0, 3)
            )
            for r in range(first, min(first + 32, n)):
                mem.put_f32(
                    y, r, dots.dot(w, rows + r * rec.nb(node, 1, 1), rec.nb(node, 1, 0), x, k)
                )
        chunk = next_chunk(node, sync)


@kernel
def mul_mat_float_many(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    tile = rec.private(node, ith)
    flat = tile + 256
    panel = flat + 4 * 4 * ((k + 15) // 16 * 16)
    per_plane = (n + ROWS - 1) // ROWS
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * ROWS
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = plane_of_weights(node, i2, i3) + first * rec.nb(node, 1, 1)
        live = min(ROWS, n - first)
        pack(w, rows, rec.nb(node, 1, 1), rec.nb(node, 1, 0), live, k, panel)
        x = rec.data(node, 2) + i2 * rec.nb(node, 2, 2) + i3 * rec.nb(node, 2, 3)
        out = rec.data(node, 0) + i2 * rec.nb(node, 0, 2) + i3 * rec.nb(node, 0, 3) + 4 * first
        for c in range(0, m, 4):
            last = m - 1
            x0 = flat_row(node, x + c * rec.nb(node, 2, 1), k, flat)
            x1 = flat_row(node, x + min(c + 1, last) * rec.nb(node, 2, 1), k, flat + 4 * k)
            x2 = flat_row(node, x + min(c + 2, last) * rec.nb(node, 2, 1), k, flat + 8 * k)
            x3 = flat_row(node, x + min(c + 3, last) * rec.nb(node, 2, 1), k, flat + 12 * k)
            four_columns(panel, x0, x1, x2, x3, k, tile)
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
    if w.kind.name not in values.PLAIN or x.kind.name != "f32":
        return None
    k = x.ne[0]
    types = (w.kind.name, "")
    if x.ne[1] <= FEW:
        return [Step(mul_mat_float_few, (node, w, x), types=types, private=4 * k + 64)]
    private = 256 + 16 * ((k + 15) // 16 * 16) + 4 * ROWS * k + 64
    return [Step(mul_mat_float_many, (node, w, x), types=types, private=private)]
