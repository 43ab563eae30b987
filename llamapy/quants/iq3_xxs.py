"""IQ3_XXS: 8 groups of 32 weights, each as 8 points of 4, 28 sign bits and a 4-bit scale.

The grid has 256 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._fit import MOVED, fit_block
from llamapy.quants._grid import Array, Floats, full_signs, points, sign_masks, signed, with_signs
from llamapy.quants._groups import sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, small_scale
from llamapy.quants.codec import Codec

# `signs`: 4 x 7 sign bits (one set for two points) and the scale of a group.
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])

TOO_SMALL = np.float32(1e-8)  # a group of smaller values becomes zero


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for group in range(8):
        signs = mem.u32(block + 66, group)
        for k in range(4):
            at = 8 * group + 2 * k
            low = np.uint64(mem.u32(grid, mem.u8(block + 2, at)))
            high = np.uint64(mem.u32(grid, mem.u8(block + 2, at + 1)))
            mask = mem.u64(masks, (signs >> 7 * k) & 127)
            mem.put_u64(q, 4 * group + k, with_signs(low | high << np.uint64(32), mask))
        scale = np.float32(0.5) + np.float32(signs >> 28)
        mem.put_f32(s, group, d * scale * np.float32(0.5))
        mem.put_f32(m, group, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks, step = tables + 16, n_per_row // 256, 1024 if importance else 0
    scales, signs, places = mem.local(32), mem.local(64), mem.local(256)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, of_block, block = src + 1024 * at, importance + at % n_blocks * step, dst + 98 * at
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        most = fit_block(
            x, of_block, sigma2, np.float32(0), True, TOO_SMALL, search, scales, signs, places
        )
        if not most >= 0:
            return 1 + at // n_blocks
        clear(block, 98)
        if most == 0:
            continue
        d = most / np.float32(31)
        mem.put_f16(block, 0, d * np.float32(1.0125))
        for k in range(64):
            mem.put_u8(block + 2, k, mem.i32(places, k))
        for group in range(8):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 15)
            seven = 0
            for k in range(4):
                seven |= (mem.i64(signs, group) >> 8 * k & 127) << 7 * k
            mem.put_u32(block + 66, group, seven | scale << 28)
    return 0


class IQ3_XXS(
    Codec,
    name="iq3_xxs",
    type_id=18,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-62, 62),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        signs = blocks["signs"]
        scale = np.float32(0.5) + (signs >> 28).astype(np.float32)
        scale = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.5)  # [n, 8]
        shifts = np.arange(0, 28, 7, dtype=np.uint32)
        seven = ((signs[..., None] >> shifts) & 127).astype(np.uint8)  # [n, 8, 4]
        pairs = points("iq3_xxs")[blocks["qs"]].reshape(-1, 8, 4, 8)
        values = signed(pairs, full_signs(seven))
        return (scale[:, :, None, None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq3_xxs"), sign_masks(7), *search_tables("iq3_xxs", 8, 31, MOVED)
