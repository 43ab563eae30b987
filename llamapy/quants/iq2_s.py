"""IQ2_S: 16 groups of 16 weights, each as 2 points of 8 with all signs, and a 4-bit scale.

The grid has 1024 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._fit import MOVED, fit_block
from llamapy.quants._grid import Array, Floats, nibbles, points, sign_masks, signed, with_signs
from llamapy.quants._groups import sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, small_scale
from llamapy.quants.codec import Codec

# `qh` holds the two high bits of the indices, four to a byte.
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)]
)

TOO_SMALL = np.float32(1e-8)  # a group of smaller values becomes zero


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for k in range(32):
        high = (mem.u8(block + 66, k >> 2) >> 2 * (k & 3)) & 3
        point = mem.u64(grid, mem.u8(block + 2, k) | high << 8)
        mask = mem.u64(masks, mem.u8(block + 34, k))
        mem.put_u64(q, k, with_signs(point, mask))
    for group in range(16):
        scale = (mem.u8(block + 74, group >> 1) >> 4 * (group & 1)) & 15
        scale = np.float32(0.5) + np.float32(scale)
        mem.put_f32(s, group, d * scale * np.float32(0.25))
        mem.put_f32(m, group, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks, step = tables + 16, n_per_row // 256, 1024 if importance else 0
    scales, signs, places = mem.local(64), mem.local(128), mem.local(128)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, of_block, block = src + 1024 * at, importance + at % n_blocks * step, dst + 82 * at
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        most = fit_block(
            x,
            of_block,
            sigma2,
            np.float32(0.25) * sigma2,
            False,
            TOO_SMALL,
            search,
            scales,
            signs,
            places,
        )
        if not most >= 0:
            return 1 + at // n_blocks
        clear(block, 82)
        for k in range(32):
            place = mem.i32(places, k)
            mem.put_u8(block + 2, k, place & 255)
            mem.put_u8(block + 34, k, mem.i64(signs, k >> 1) >> 8 * (k & 1) & 255)
            high = mem.u8(block + 66, k >> 2) | place >> 8 << 2 * (k & 3)
            mem.put_u8(block + 66, k >> 2, high)
        if most == 0:
            continue
        d = most / np.float32(31)
        mem.put_f16(block, 0, d * np.float32(0.9875))
        for group in range(16):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 15)
            both = mem.u8(block + 74, group >> 1) | scale << 4 * (group & 1)
            mem.put_u8(block + 74, group >> 1, both)
    return 0


class IQ2_S(
    Codec,
    name="iq2_s",
    type_id=22,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-43, 43),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        d = blocks["d"].astype(np.float32)[:, None]
        scale = d * (np.float32(0.5) + nibbles(blocks["scales"])) * np.float32(0.25)  # [n, 16]
        high = (blocks["qh"][..., None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        index = blocks["qs"] | high.reshape(-1, 32).astype(np.uint16) << 8
        values = signed(points("iq2_s")[index], blocks["signs"]).reshape(-1, 16, 16)
        return (scale[..., None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq2_s"), sign_masks(8), *search_tables("iq2_s", 2, 19, MOVED)
