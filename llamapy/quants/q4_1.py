"""Q4_1: 32 weights as 4-bit numbers, a half-precision scale and minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants import _groups, _legacy
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


@compiled
def numbers(block, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    return simd.nibbles_u8x32(block + 4)


@compiled
def unpack(block, q, s, m, tables):
    simd.store_u8x32(q, numbers(block, tables))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, -mem.f16(block, 1))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The levels span the range of the weights; with importances scale and minimum are searched."""
    n_blocks = n_per_row // 32
    if importance:
        for row in range(n_rows):
            x = src + 4 * n_per_row * row
            encode_weighted(x, dst + 20 * n_blocks * row, n_per_row, importance)
        return
    for i in range(n_rows * n_blocks):
        x, block = src + 128 * i, dst + 20 * i
        low, high = _legacy.range_of(x, 32)
        d = (high - low) / np.float32(15)
        inverse = np.float32(1) / d if d != 0 else np.float32(0)
        mem.put_f16(block, 0, d)
        mem.put_f16(block, 1, low)
        _legacy.put_four_bits(x, low, inverse, np.float32(0.5), block + 4)


@compiled
def encode_weighted(row, out, n_per_row, importance):
    """One row, eight blocks at a time."""
    found, levels = mem.local(128), mem.local(32)
    sigma2 = _groups.sum_of_squares(row, n_per_row) / np.float32(n_per_row)
    for first in range(0, n_per_row // 32, 8):
        count = _legacy.fit_ranges(row, importance, n_per_row, first, sigma2, 15, found)
        for k in range(count):
            x, block = row + 128 * (first + k), out + 20 * (first + k)
            inverse, base = mem.f32(found, 16 + k), mem.f32(found, 24 + k)
            _groups.put_searched(x, 32, inverse, base, 0, 15, levels)
            mem.put_f16(block, 0, mem.f32(found, k))
            mem.put_f16(block, 1, -mem.f32(found, 8 + k))
            _legacy.pack_four_bits(levels, block + 4)


class Q4_1(
    Codec,
    name="q4_1",
    type_id=3,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(0, 15),
    has_min=True,
    dot_with="q8_0",
    halves=2,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        qs = blocks["qs"]
        q = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.float32)
        d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
        return d * q + m
