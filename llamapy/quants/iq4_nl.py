"""IQ4_NL: 32 weights as 4-bit indices of sixteen uneven numbers, one half-precision scale."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants._grid import Array, Floats
from llamapy.quants._groups import sum_of_squares
from llamapy.quants._iq4 import LADDER, VALUES, group_scale, pack
from llamapy.quants._weights import weigh
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def numbers(block, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    return simd.lookup_u8x32(mem.i64(tables, 0), simd.nibbles_u8x32(block + 2))


@compiled
def unpack(block, q, s, m, tables):
    simd.store_u8x32(q, numbers(block, tables))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    w, n_blocks = mem.local(128), n_per_row // 32
    for row in range(n_rows):
        for b in range(n_blocks):
            x, block = src + 4 * (row * n_per_row + 32 * b), dst + 18 * (row * n_blocks + b)
            of_block = importance + 128 * b if importance else importance
            sigma2 = sum_of_squares(x, 32) * np.float32(2 / 32)
            weigh(x, of_block, 32, sigma2, np.float32(0), w)
            scale = group_scale(x, w, mem.i64(tables, 1))
            mem.put_f16(block, 0, scale)
            pack(
                x,
                np.float32(1) / scale if scale != 0 else np.float32(0),
                mem.i64(tables, 1),
                block + 2,
            )
    return 0


class IQ4_NL(
    Codec,
    name="iq4_nl",
    type_id=20,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-127, 113),
    dot_with="q8_0",
    halves=1,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)
        return blocks["d"].astype(np.float32)[:, None] * VALUES[codes].astype(np.float32)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return VALUES, LADDER
