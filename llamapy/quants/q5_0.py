"""Q5_0: 32 weights as 5-bit numbers around 16, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants import _groups, _legacy
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


@compiled
def numbers(block, tables):
    """Low halves as in Q4_0; bit j of the 32 bits `qh` is the fifth bit of value j."""
    fifth = simd.bits_u8x32(mem.u32(block + 2, 0)) & simd.splat_u8x32(np.uint8(16))
    return simd.nibbles_u8x32(block + 6) | fifth


@compiled
def unpack(block, q, s, m, tables):
    from_zero = simd.as_signed(numbers(block, tables))
    simd.store_i8x32(q, from_zero - simd.splat_i8x32(np.int8(16)))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


def five_bits(qs: np.ndarray[Any, Any], qh: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 [n, 16] (value j low, j + 16 high) and [n, 4] (a bit a value) -> uint8 [n, 32]."""
    high = np.unpackbits(qh, axis=-1, bitorder="little") << np.uint8(4)
    return np.concatenate([qs & 15, qs >> 4], axis=-1) | high


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The weight of the largest size becomes -16; with importances the scale is searched."""
    n_blocks = n_per_row // 32
    if importance:
        for row in range(n_rows):
            x = src + 4 * n_per_row * row
            encode_weighted(x, dst + 22 * n_blocks * row, n_per_row, importance)
        return
    for i in range(n_rows * n_blocks):
        x, block = src + 128 * i, dst + 22 * i
        d = _legacy.peak(x, 32) / np.float32(-16)
        inverse = np.float32(1) / d if d != 0 else np.float32(0)
        mem.put_f16(block, 0, d)
        _legacy.put_five_bits(x, np.float32(0), inverse, np.float32(16.5), block + 2, block + 6)


@compiled
def encode_weighted(row, out, n_per_row, importance):
    """One row, eight blocks at a time."""
    found, levels = mem.local(64), mem.local(32)
    sigma2 = _groups.sum_of_squares(row, n_per_row) / np.float32(n_per_row)
    for first in range(0, n_per_row // 32, 8):
        count = _legacy.fit_scales(row, importance, n_per_row, first, sigma2, 16, found)
        for k in range(count):
            x, block = row + 128 * (first + k), out + 22 * (first + k)
            inverse = mem.f32(found, 8 + k)
            _groups.put_searched(x, 32, inverse, np.float32(0), -16, 15, levels)
            mem.put_f16(block, 0, mem.f32(found, k))
            _legacy.pack_five_bits(levels, block + 2, block + 6)


class Q5_0(
    Codec,
    name="q5_0",
    type_id=6,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-16, 15),
    dot_with="q8_0",
    halves=1,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        q = five_bits(blocks["qs"], blocks["qh"]).astype(np.int8) - np.int8(16)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
