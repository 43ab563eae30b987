"""Activations in 8 bits for four columns at a time, with 8 more bits where 8 are too few.

A few channels of a model's activations are far larger than the rest. In their blocks of 32 the
step of 8 bits is coarse, and most of a row's rounding error comes from there: a fifth of the blocks
holds four fifths of it. So such blocks of a tile (four rows) get a correction: what rounding lost,
rounded to 8 bits again, a 254th of the first step each. Products add it as one more block.

Corrections of a tile: how many (int32, 64 bytes); which block of 32 each one belongs to (int32);
its four scales; its values, int8 [4, 32].
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Step, kernel
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, levels, mem, simd

COLUMNS = 4
# A block is corrected if its rounding error (root mean square, over the tile) would be more than
# this part of the average block of its row. That leaves SmolLM2 and Gemma one block in twelve to
# correct, and a fifth or less of llama.cpp's divergence from float32 (docs/speed.md).
TOLERANCE = 0.014


def tile_bytes(k: int) -> int:
    """Bytes of the corrections of a tile of rows of k values, if every block has one."""
    return 64 + (4 + 16 + 128) * (k // 32) + 64


@compiled
def per_plane(m):
    """Tiles of a plane of m rows."""
    return (m + COLUMNS - 1) // COLUMNS


@compiled
def tiles_of(rows, row_size, n_rows, m, tile_size, plane):
    """Address of the first tile of a plane: all tiles come after all n_rows quantized rows."""
    return rows + n_rows * row_size + plane * per_plane(m) * tile_size


@compiled
def count(tile):
    return mem.i32(tile, 0)


@compiled
def block_of(tile, i):
    return mem.i32(tile + 64, i)


@compiled
def scales(tile, k):
    """Address of four float32 for each correction."""
    return tile + 64 + 4 * (k // 32)


@compiled
def numbers(tile, k):
    """Address of 128 bytes for each correction."""
    return tile + 64 + 20 * (k // 32)


@compiled
def weight(x, k):
    """What the square of a block's step counts in the mean that must not exceed 1."""
    squares = simd.zeros_f32x16()
    for i in range(0, k, 16):
        v = simd.load_f32x16(x + 4 * i)
        squares = simd.fma_f32x16(v, v, squares)
    average = simd.total_f32x16(squares) / np.float32(k // 32)
    allowed = np.float32(TOLERANCE * TOLERANCE) * average
    return np.float32(32 / 12) / allowed if allowed > 0 else np.float32(0)


@compiled
def correct_block(x, row, k, b, paired, out):
    """Rounds what the row lost of block b to 32 int8 at `out`; adds them to the row's sums; the
    scale. paired: as for `activations.quantize_row`."""
    step = mem.f32(act.scales_32(row, k, 1), b)
    scale = step / np.float32(126 if paired else 254)
    inverse = simd.splat_f32x16(np.float32(1) / scale if scale > 0 else np.float32(0))
    halves, both = act.sums_16(row, k, 1), np.float32(0)
    for half in range(2):
        at = 32 * b + 16 * half
        rounded = simd.splat_f32x16(step) * simd.load_i8_f32x16(row + at)
        lost = simd.nearest_i32x16((simd.load_f32x16(x + 4 * at) - rounded) * inverse)
        simd.store_i8_i32x16(out + 16 * half, lost)
        more = scale * np.float32(simd.total_i32x16(lost))
        mem.put_f32(halves, 2 * b + half, mem.f32(halves, 2 * b + half) + more)
        both += more
    sums = act.sums_32(row, k, 1)
    mem.put_f32(sums, b, mem.f32(sums, b) + both)
    return scale


@compiled
def correct_tile(x, x_stride, rows, row_size, live, k, paired, tile, weights):
    """Corrections for `live` float32 rows at x, already rounded to `rows`; nothing is written for
    rows that a tile lacks. weights: room for 4 float32."""
    for c in range(live):
        mem.put_f32(weights, c, weight(x + c * x_stride, k))
    n = 0
    for b in range(k // 32):
        error = np.float32(0)
        for c in range(live):
            step = mem.f32(act.scales_32(rows + c * row_size, k, 1), b)
            error += step * step * mem.f32(weights, c)
        if error > np.float32(live):
            out = numbers(tile, k) + 128 * n
            mem.put_i32(tile + 64, n, np.int32(b))
            for c in range(live):
                y, row = x + c * x_stride, rows + c * row_size
                scale = correct_block(y, row, k, b, paired, out + 32 * c)
                mem.put_f32(scales(tile, k), 4 * n + c, scale)
            n += 1
    mem.put_i32(tile, 0, np.int32(n))


@kernel
def quantize_tiles(node, ith, nth, sync, a, b):
    """Every row of source 1 into the shared scratch, the corrections of all tiles after them;
    parameter 0: bytes a row, 1: of a tile's corrections, 2: whether neighbours are paired."""
    row_size, tile_size, paired = rec.param(node, 0), rec.param(node, 1), rec.param(node, 2) != 0
    k, m, n_rows = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.n_rows(node, 1)
    tiles = tiles_of(rec.shared(node), row_size, n_rows, m, tile_size, 0)
    weights = rec.private(node, ith)
    flat = weights + 64
    for t in range(ith, n_rows // m * per_plane(m), nth):
        first = t % per_plane(m) * COLUMNS
        live, r = min(COLUMNS, m - first), t // per_plane(m) * m + first
        rows = rec.shared(node) + r * row_size
        x, stride = rec.row_address(node, 1, r), rec.nb(node, 1, 1)
        if rec.nb(node, 1, 0) != 4:
            for c in range(live):
                act.copy_row(x + c * stride, rec.nb(node, 1, 0), k, flat + 4 * k * c)
            x, stride = flat, 4 * k
        for c in range(live):
            act.quantize_row(x + c * stride, rows + c * row_size, k, 1, paired)
        correct_tile(x, stride, rows, row_size, live, k, paired, tiles + t * tile_size, weights)


def quantize_step(x: Tensor) -> Step:
    """The step that leaves x's rows in 8 bits in the shared scratch, and the corrections of the
    tiles of each plane after them. Neighbours are paired where sums are short."""
    k, m, paired = x.ne[0], x.ne[1], levels.short_sums()
    row, tile = act.row_bytes(k, 1), tile_bytes(k)
    tiles = x.n_rows // m * ((m + COLUMNS - 1) // COLUMNS)
    flat = 0 if x.contiguous_rows else 4 * k * COLUMNS
    return Step(
        quantize_tiles,
        (None, x),
        (row, tile, int(paired)),
        shared=row * x.n_rows + tile * tiles,
        private=64 + flat,
        leaves=(id(x), "tiles"),
    )
