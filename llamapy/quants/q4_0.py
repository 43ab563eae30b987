"""Q4_0: 32 weights as 4-bit numbers around 8, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants import _groups, _legacy
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def numbers(block, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    return simd.nibbles_u8x32(block + 2)


@compiled
def unpack(block, q, s, m, tables):
    from_zero = simd.as_signed(numbers(block, tables))
    simd.store_i8x32(q, from_zero - simd.splat_i8x32(np.int8(8)))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The weight of the largest size becomes -8; with importances the scale is searched."""
    n_blocks = n_per_row // 32
    if importance:
        for row in range(n_rows):
            x = src + 4 * n_per_row * row
            encode_weighted(x, dst + 18 * n_blocks * row, n_per_row, importance)
        return
    for i in range(n_rows * n_blocks):
        x, block = src + 128 * i, dst + 18 * i
        d = _legacy.peak(x, 32) / np.float32(-8)
        inverse = np.float32(1) / d if d != 0 else np.float32(0)
        mem.put_f16(block, 0, d)
        _legacy.put_four_bits(x, np.float32(0), inverse, np.float32(8.5), block + 2)


@compiled
def encode_weighted(row, out, n_per_row, importance):
    """One row, eight blocks at a time."""
    found, levels = mem.local(64), mem.local(32)
    sigma2 = _groups.sum_of_squares(row, n_per_row) / np.float32(n_per_row)
    for first in range(0, n_per_row // 32, 8):
        count = _legacy.fit_scales(row, importance, n_per_row, first, sigma2, 8, found)
        for k in range(count):
            x, block = row + 128 * (first + k), out + 18 * (first + k)
            inverse = mem.f32(found, 8 + k)
            _groups.put_searched(x, 32, inverse, np.float32(0), -8, 7, levels)
            mem.put_f16(block, 0, mem.f32(found, k))
            _legacy.pack_four_bits(levels, block + 2)


class Q4_0(
    Codec,
    name="q4_0",
    type_id=2,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-8, 7),
    dot_with="q8_0",
    halves=1,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        qs = blocks["qs"]
        q = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
