"""mul_mat of F32, F16 and BF16 weights (and of caches and other matrices in those types), in
float32.

Few columns: dot products along the rows. Many: sixteen rows are interleaved as float32 once and
meet four columns at a
time. Rows of either source may lie anywhere; elements of a weight row, too (a transposed view).
"""

from __future__ import annotations

from llamapy.backend.cpu import dot_pairs, values
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.activations import apart, copy_row, flat_row
from llamapy.backend.cpu.panels.groups import ROWS, addresses, store_products, store_tile
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of, next_chunk, rows_of_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("mul_mat",)
PRIORITY = 5
FEW = 8  # up to so many columns each row of weights is read by itself
ROWS_FEW = 32  # rows that stay in the cache while each of these columns meets them
BLOCK = 256  # so much of a panel stays in first-level cache while all columns meet it


@compiled
def pack(w, rows, stride, element, live, k, panel):
    """Interleave rows: panel[k, 16] float32. Missing rows: the last."""
    flat, size = mem.local(1024), values.n_bytes(w)  # 16 numbers of each row
    whole = k // 16 * 16 if element == size else 0
    for i in range(0, whole, 16):
        for r in range(ROWS):
            row = rows + min(r, live - 1) * stride
            simd.store_f32x16(flat + 64 * r, values.load_16(w, row + size * i))
        for j in range(0, 16, 8):
            simd.turn_u32x8(flat + 4 * j, 64, panel + 64 * (i + j), 64)
            simd.turn_u32x8(flat + 4 * j + 512, 64, panel + 64 * (i + j) + 32, 64)
    for r in range(ROWS):
        row = rows + min(r, live - 1) * stride
        for i in range(whole, k):
            mem.put_f32(panel, i * ROWS + r, values.load_1(w, row + element * i, 0))


@compiled
def four_columns(panel, x, k, sums):
    """sums[4, 16] += k steps of a panel times four columns, from the addresses x on."""
    c0, c1 = simd.load_f32x16(sums), simd.load_f32x16(sums + 64)
    c2, c3 = simd.load_f32x16(sums + 128), simd.load_f32x16(sums + 192)
    for i in range(k):
        w = simd.load_f32x16(panel + 64 * i)
        c0 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x[0], i)), c0)
        c1 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x[1], i)), c1)
        c2 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x[2], i)), c2)
        c3 = simd.fma_f32x16(w, simd.splat_f32x16(mem.f32(x[3], i)), c3)
    store_products(sums, (c0, c1, c2, c3))


@compiled
def plane_of_weights(node, i2, i3):
    rows = rec.data(node, 1) + i2 * rec.ne(node, 1, 2) // rec.ne(node, 2, 2) * rec.nb(node, 1, 2)
    return rows + i3 * rec.ne(node, 1, 3) // rec.ne(node, 2, 3) * rec.nb(node, 1, 3)


@kernel
def mul_mat_float_few(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    scratch = rec.private(node, ith)
    stride, element = rec.nb(node, 1, 1), rec.nb(node, 1, 0)
    size = rows_of_chunk(n, nth) if m == 1 else ROWS_FEW
    per_plane = (n + size - 1) // size
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * size
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = plane_of_weights(node, i2, i3)
        for c in range(m):
            x = (
                rec.data(node, 2)
                + c * rec.nb(node, 2, 1)
                + i2 * rec.nb(node, 2, 2)
                + i3 * rec.nb(node, 2, 3)
            )
            x = flat_row(x, rec.nb(node, 2, 0), k, scratch)
            y = (
                rec.data(node, 0)
                + c * rec.nb(node, 0, 1)
                + i2 * rec.nb(node, 0, 2)
                + i3 * rec.nb(node, 0, 3)
            )
            last = min(first + size, n)
            dot_pairs.float_products(w, rows, stride, element, x, k, y, first, last)
        chunk = next_chunk(node, sync)


@kernel
def lay_out(node, ith, nth, sync, a, b):
    """Every row of source 1 as float32 into the shared scratch; parameter 0: bytes from one to the
    next."""
    k, step = rec.ne(node, 1, 0), rec.nb(node, 1, 0)
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        y = rec.shared(node) + r * rec.param(node, 0)
        copy_row(rec.row_address(node, 1, r), step, k, y)


@kernel
def mul_mat_float_many(node, ith, nth, sync, w, b):
    """Parameter 0: bytes from one row of activations to the next."""
    k, n, m, x_size = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1), rec.param(node, 0)
    panel = rec.private(node, ith)
    sums = panel + 4 * ROWS * k
    per_plane = (n + ROWS - 1) // ROWS
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * ROWS
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = plane_of_weights(node, i2, i3) + first * rec.nb(node, 1, 1)
        live = min(ROWS, n - first)
        pack(w, rows, rec.nb(node, 1, 1), rec.nb(node, 1, 0), live, k, panel)
        for i in range(0, (m + 3) // 4 * 64, 16):
            simd.store_f32x16(sums + 4 * i, simd.zeros_f32x16())
        for at in range(0, k, BLOCK):
            x = rec.shared(node) + plane * m * x_size + 4 * at
            for c in range(0, m, 4):
                columns = addresses(x, x_size, c, m)
                four_columns(panel + 64 * at, columns, min(BLOCK, k - at), sums + 64 * c)
        out = rec.data(node, 0) + i2 * rec.nb(node, 0, 2) + i3 * rec.nb(node, 0, 3) + 4 * first
        store_tile(sums, out, rec.nb(node, 0, 1), m, live)
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x = node.src
    if w.kind.name not in values.PLAIN or x.kind.name != "f32":
        return None
    k, m, row = x.ne[0], x.ne[1], apart(4 * x.ne[0])
    types = (w.kind.name, "")
    if m <= FEW:
        return [Step(mul_mat_float_few, (node, w, x), types=types, private=4 * k + 64)]
    laid_out, key = row * x.n_rows, (id(x), "f32")
    private = 4 * ROWS * k + 4 * ROWS * ((m + 3) // 4 * 4)
    return [
        Step(lay_out, (None, x), (row,), shared=laid_out, leaves=key),
        Step(
            mul_mat_float_many,
            (node, w, x),
            (row,),
            types,
            shared=laid_out,
            private=private,
            takes=key,
        ),
    ]
