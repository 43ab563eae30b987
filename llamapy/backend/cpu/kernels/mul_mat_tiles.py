"""mul_mat with many columns (prefill) on AMX tiles: bf16 panels of weights, bf16 rows of
activations, float32 sums.

Sixteen columns and sixteen weight rows make a tile; two by two of them share their loads. Weights
are unpacked to a
panel of bf16 pairs (k two by two, sixteen rows side by side: the layout that the tile product
wants) once for all
columns. Nothing is repacked for good.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.backend import aligned
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.panels.groups import turn_rows
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of, next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, level, mem, simd
from llamapy.quants import codec

OPS = ("mul_mat",)
PRIORITY = 20
LEAST_COLUMNS = 16
ROWS = 32  # weight rows a chunk: two panels
PIECE = 256  # values of a row that are packed at once; blocks of all types divide it

_CONFIG = aligned(64)  # palette 1; eight tiles of 16 rows, 64 bytes each
_CONFIG[0] = 1
_CONFIG[16:32].view(np.uint16)[:] = 64
_CONFIG[48:56] = 16


@kernel
def round_rows(node, ith, nth, sync, a, b):
    """Rows of source 1 as bf16 in the shared scratch, up to a multiple of 32 rows (zeros).
    Parameter 0: bytes a row."""
    k, size, n = rec.ne(node, 1, 0), rec.param(node, 0), rec.n_rows(node, 1)
    start, end = block_of((n + 31) // 32 * 32, ith, nth)
    for r in range(start, end):
        row = rec.shared(node) + r * size
        x = rec.row_address(node, 1, min(r, n - 1))
        for i in range(0, k, 16):
            v = simd.load_f32x16(x + 4 * i) if r < n else simd.zeros_f32x16()
            simd.store_bf16_f32x16(row + 2 * i, v)


@compiled
def pack(w, rows, stride, live, k, panel, flat, half, scratch, tables):
    """Sixteen rows as bf16 pairs: panel[k / 2, 16, 2]. Missing rows: the last.

    In pieces that stay in first-level cache until they are turned, by vectors: with 512 columns a
    weight's products take one cycle, so packing it must not take several.
    """
    for at in range(0, k, PIECE):
        n = min(PIECE, k - at)
        for r in range(16):
            source = rows + min(r, live - 1) * stride + at // values.n_values(w) * values.n_bytes(w)
            values.row_to_f32(w, source, flat, n, scratch, tables)
            for i in range(0, n, 16):
                simd.store_bf16_f32x16(half + 2 * (r * n + i), simd.load_f32x16(flat + 4 * i))
        turn_rows(half, n // 2, panel + 32 * at)


@compiled
def four_tiles(regs, x, x_size, panel, k):
    """32 columns times 32 weight rows into tiles 0-3."""
    simd.tile_zero_0(regs)
    simd.tile_zero_1(regs)
    simd.tile_zero_2(regs)
    simd.tile_zero_3(regs)
    other = panel + 32 * k
    for i in range(k // 32):
        simd.tile_load_4(regs, x + 64 * i, x_size)
        simd.tile_load_6(regs, panel + 1024 * i, 64)
        simd.tile_dp_0(regs)
        simd.tile_load_7(regs, other + 1024 * i, 64)
        simd.tile_dp_1(regs)
        simd.tile_load_5(regs, x + 16 * x_size + 64 * i, x_size)
        simd.tile_dp_2(regs)
        simd.tile_dp_3(regs)


@compiled
def put_tiles(regs, out, stride, columns, live, spare):
    """Tiles 0-3 to their columns and rows; through `spare` [32, 32] where some do not exist."""
    whole = columns >= 32 and live >= 32
    to, step = (out, stride) if whole else (spare, np.int64(128))
    simd.tile_store_0(regs, to, step)
    simd.tile_store_1(regs, to + 64, step)
    simd.tile_store_2(regs, to + 16 * step, step)
    simd.tile_store_3(regs, to + 16 * step + 64, step)
    if not whole:
        for c in range(min(columns, 32)):
            for r in range(min(live, 32)):
                mem.put_f32(out + c * stride, r, mem.f32(spare + 128 * c, r))


@kernel
def mul_mat_tiles(node, ith, nth, sync, w, b):
    """Parameters: bytes a row of activations, tables of the weights' type, the tile
    configuration."""
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    x_size, tables = rec.param(node, 0), rec.param(node, 1)
    regs = rec.private(node, ith)
    spare = regs + 8192
    scratch = spare + 4096
    flat = scratch + values.SCRATCH
    half = flat + 4 * PIECE
    panel = half + 16 * 2 * PIECE
    n_chunks = (n + ROWS - 1) // ROWS
    simd.tile_config(rec.param(node, 2))
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        first = chunk * ROWS
        live, stride = min(ROWS, n - first), rec.nb(node, 1, 1)
        rows = rec.data(node, 1) + first * stride
        pack(w, rows, stride, min(16, live), k, panel, flat, half, scratch, tables)
        more = rows + min(16, live - 1) * stride
        pack(w, more, stride, max(1, live - 16), k, panel + 32 * k, flat, half, scratch, tables)
        for c in range(0, m, 32):
            four_tiles(regs, rec.shared(node) + c * x_size, x_size, panel, k)
            out = rec.data(node, 0) + c * rec.nb(node, 0, 1) + 4 * first
            put_tiles(regs, out, rec.nb(node, 0, 1), m - c, live, spare)
        chunk = next_chunk(node, sync)
    simd.tile_release()


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    if level() != "amx":
        return None
    w, x = node.src
    k, flat = x.ne[0], w.ne[2] == w.ne[3] == x.ne[2] == x.ne[3] == 1
    if not flat or k % 32 or x.ne[1] < LEAST_COLUMNS or x.kind.name != "f32":
        return None
    # Plain types keep their float32 products: rounding to bf16 would be the only error they have.
    if w.kind.unpack is None or w.kind.n_values > 256:
        return None
    if not (w.contiguous_rows and x.contiguous_rows):
        return None
    size, columns = (2 * k + 63) // 64 * 64, (x.ne[1] + 31) // 32 * 32
    key = (id(x), "bf16")
    step = Step(round_rows, (None, x), (size,), shared=size * columns, leaves=key)
    private = 8192 + 4096 + values.SCRATCH + (4 + 16 * 2) * PIECE + 2 * 32 * k
    params = (size, codec.tables_address(w.kind), int(_CONFIG.ctypes.data))
    types = (w.kind.name, "")
    return [step, Step(mul_mat_tiles, (node, w, x), params, types, step.shared, private, takes=key)]
