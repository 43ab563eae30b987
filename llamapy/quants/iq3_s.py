"""IQ3_S: 8 groups of 32 weights, each as 8 points of 4, 32 sign bits and a 4-bit scale.

The grid has 512 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._fit import ALL_IF_MOVED, fit_block
from llamapy.quants._grid import Array, Floats, nibbles, points, sign_masks, signed, with_signs
from llamapy.quants._groups import largest, sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, small_scale
from llamapy.quants.codec import Codec

# `qh` holds the ninth bits of the indices, eight to a byte.
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)

TOO_SMALL = np.float32(1e-45)  # the least above 0: only a group of zeros is left out


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for k in range(32):
        ninths = mem.u8(block + 66, k >> 2) >> 2 * (k & 3)
        low = np.uint64(mem.u32(grid, mem.u8(block + 2, 2 * k) | (ninths & 1) << 8))
        high = np.uint64(mem.u32(grid, mem.u8(block + 2, 2 * k + 1) | (ninths & 2) << 7))
        mask = mem.u64(masks, mem.u8(block + 74, k))
        mem.put_u64(q, k, with_signs(low | high << np.uint64(32), mask))
    for group in range(8):
        scale = (mem.u8(block + 106, group >> 1) >> 4 * (group & 1)) & 15
        mem.put_f32(s, group, d * np.float32(1 + 2 * scale))
        mem.put_f32(m, group, np.float32(0))


@compiled
def put_points(x, signs, places, block):
    """Write the indices and signs of all groups.

    As ggml, to the byte, with its fault: a group of zeros takes no slot, so that the signs and the
    low bytes of the indices of the groups after it in the block lie one group too early.
    """
    slot = 0
    for group in range(8):
        if largest(x + 128 * group, 32) == 0:
            continue
        ninths = 0
        for k in range(8):
            place = mem.i32(places, 8 * group + k)
            mem.put_u8(block + 2, 8 * slot + k, place & 255)
            ninths |= place >> 8 << k
        mem.put_u8(block + 66, group, ninths)
        mem.put_u32(block + 74, slot, mem.i64(signs, group))
        slot += 1


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks, step = tables + 16, n_per_row // 256, 1024 if importance else 0
    scales, signs, places = mem.local(32), mem.local(64), mem.local(256)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, of_block, block = src + 1024 * at, importance + at % n_blocks * step, dst + 110 * at
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        most = fit_block(
            x, of_block, sigma2, np.float32(0), False, TOO_SMALL, search, scales, signs, places
        )
        if not most >= 0:
            return 1 + at // n_blocks
        clear(block, 110)
        put_points(x, signs, places, block)
        if most == 0:
            continue
        d = most / np.float32(31)
        mem.put_f16(block, 0, d * np.float32(1.033))
        for group in range(8):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 15)
            both = mem.u8(block + 106, group >> 1) | scale << 4 * (group & 1)
            mem.put_u8(block + 106, group >> 1, both)
    return 0


class IQ3_S(
    Codec,
    name="iq3_s",
    type_id=21,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-15, 15),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        d = blocks["d"].astype(np.float32)[:, None]
        scale = d * (1 + 2 * nibbles(blocks["scales"]))  # [n, 8]
        ninth = np.unpackbits(blocks["qh"], axis=-1, bitorder="little").astype(np.uint16)
        pairs = points("iq3_s")[blocks["qs"] | ninth << 8].reshape(-1, 32, 8)
        values = signed(pairs, blocks["signs"]).reshape(-1, 8, 32)
        return (scale[..., None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq3_s"), sign_masks(8), *search_tables("iq3_s", 8, 19, ALL_IF_MOVED)
