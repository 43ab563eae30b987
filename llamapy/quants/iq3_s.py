"""IQ3_S: 8 groups of 32 weights, each as 8 points of 4, 32 sign bits and a 4-bit scale.

The grid has 512 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._fit import ALL_IF_MOVED, ROOM, fit
from llamapy.quants._grid import Array, Floats, nibbles, points, sign_masks, signed, with_signs
from llamapy.quants._groups import largest, sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, prepare, small_scale, widest
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import put_half

# `qh` holds the ninth bits of the indices, eight to a byte.
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)


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
def encode_group(src, importance, sigma2, search, group, slot, block):
    """Write the indices and signs of a group; return its scale, or NaN where ggml aborts.

    The ninth bits go to the place of `group`, all else to that of `slot` (see `encode`).
    """
    x, w, root_w, codes = mem.local(128), mem.local(128), mem.local(128), mem.local(1024)
    signs, most = prepare(src, importance, 32, sigma2, np.float32(0), False, x, w, root_w)
    scale = fit(x, w, root_w, most, most / np.float32(15), codes, search)
    if scale < 0:
        scale, signs = -scale, ~signs
    ninths = 0
    for k in range(8):
        place = mem.i32(mem.i64(search, 3), mem.i32(codes, ROOM * k))
        mem.put_u8(block + 2, 8 * slot + k, place & 255)
        ninths |= place >> 8 << k
    mem.put_u8(block + 66, group, ninths)
    mem.put_u32(block + 74, slot, signs)
    return scale


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """As ggml, to the byte, with its fault: a group of zeros takes no slot, so that the indices and
    signs of the groups after it in the block lie one group too early.
    """
    search, scales, n_blocks = tables + 16, mem.local(32), n_per_row // 256
    step = 128 if importance else 0
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, block = src + 1024 * at, dst + 110 * at
        clear(block, 110)
        slot = 0
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        for group in range(8):
            values, scale = x + 128 * group, np.float32(0)
            if largest(values, 32) != 0:
                of_group = importance + (at % n_blocks * 8 + group) * step
                scale = encode_group(values, of_group, sigma2, search, group, slot, block)
                slot += 1
            mem.put_f32(scales, group, scale)
        most = widest(scales, 8)
        if not most >= 0:
            return 1 + at // n_blocks
        if most == 0:
            continue
        d = most / np.float32(31)
        put_half(block, 0, d * np.float32(1.033))
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
