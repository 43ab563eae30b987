"""IQ2_XS: 16 groups of 16 weights, each as 2 points of 8 with 7 sign bits, and a 4-bit scale.

The grid has 512 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._fit import MOVED, fit_block
from llamapy.quants._grid import (
    Array,
    Floats,
    full_signs,
    nibbles,
    points,
    sign_masks,
    signed,
    with_signs,
)
from llamapy.quants._groups import sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, small_scale
from llamapy.quants.codec import Codec

# Each number of `qs`: 9 bits of index, 7 sign bits.
BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])

TOO_SMALL = np.float32(1e-15)  # a group of smaller values becomes zero


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for k in range(32):
        code = mem.u16(block + 2, k)
        point, mask = mem.u64(grid, code & 511), mem.u64(masks, code >> 9)
        mem.put_u64(q, k, with_signs(point, mask))
    for group in range(16):
        scale = (mem.u8(block + 66, group >> 1) >> 4 * (group & 1)) & 15
        scale = np.float32(0.5) + np.float32(scale)
        mem.put_f32(s, group, d * scale * np.float32(0.25))
        mem.put_f32(m, group, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks, step = tables + 16, n_per_row // 256, 1024 if importance else 0
    scales, signs, places = mem.local(64), mem.local(128), mem.local(128)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, of_block, block = src + 1024 * at, importance + at % n_blocks * step, dst + 74 * at
        sigma2 = sum_of_squares(x, 256) / np.float32(256)
        most = fit_block(
            x, of_block, sigma2, np.float32(0), True, TOO_SMALL, search, scales, signs, places
        )
        if not most >= 0:
            return 1 + at // n_blocks
        clear(block, 74)
        if most == 0:
            continue
        d = most / np.float32(31)
        mem.put_f16(block, 0, d)
        for k in range(32):
            seven = mem.i64(signs, k >> 1) >> 8 * (k & 1) & 127
            mem.put_u16(block + 2, k, mem.i32(places, k) | seven << 9)
        for group in range(16):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 15)
            both = mem.u8(block + 66, group >> 1) | scale << 4 * (group & 1)
            mem.put_u8(block + 66, group >> 1, both)
    return 0


class IQ2_XS(
    Codec,
    name="iq2_xs",
    type_id=17,
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
        d, qs = blocks["d"].astype(np.float32)[:, None], blocks["qs"]
        scale = d * (np.float32(0.5) + nibbles(blocks["scales"])) * np.float32(0.25)  # [n, 16]
        values = signed(points("iq2_xs")[qs & 511], full_signs((qs >> 9).astype(np.uint8)))
        return (scale[..., None] * values.reshape(-1, 16, 16)).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq2_xs"), sign_masks(7), *search_tables("iq2_xs", 2, 19, MOVED)
