"""Q5_1: 32 weights as 5-bit numbers, a half-precision scale and minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants import _groups, _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.q5_0 import five_bits

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


@compiled
def numbers(block, tables):
    """As Q5_0, with a minimum."""
    fifth = simd.bits_u8x32(mem.u32(block + 4, 0)) & simd.splat_u8x32(np.uint8(16))
    return simd.nibbles_u8x32(block + 8) | fifth


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
            encode_weighted(x, dst + 24 * n_blocks * row, n_per_row, importance)
        return
    for i in range(n_rows * n_blocks):
        x, block = src + 128 * i, dst + 24 * i
        low, high = _legacy.range_of(x, 32)
        d = (high - low) / np.float32(31)
        inverse = np.float32(1) / d if d != 0 else np.float32(0)
        mem.put_f16(block, 0, d)
        mem.put_f16(block, 1, low)
        _legacy.put_five_bits(x, low, inverse, np.float32(0.5), block + 4, block + 8)


@compiled
def encode_weighted(row, out, n_per_row, importance):
    """One row, eight blocks at a time."""
    found, levels = mem.local(128), mem.local(32)
    sigma2 = _groups.sum_of_squares(row, n_per_row) / np.float32(n_per_row)
    for first in range(0, n_per_row // 32, 8):
        count = _legacy.fit_ranges(row, importance, n_per_row, first, sigma2, 31, found)
        for k in range(count):
            x, block = row + 128 * (first + k), out + 24 * (first + k)
            inverse, base = mem.f32(found, 16 + k), mem.f32(found, 24 + k)
            _groups.put_searched(x, 32, inverse, base, 0, 31, levels)
            mem.put_f16(block, 0, mem.f32(found, k))
            mem.put_f16(block, 1, -mem.f32(found, 8 + k))
            _legacy.pack_five_bits(levels, block + 4, block + 8)


class Q5_1(
    Codec,
    name="q5_1",
    type_id=7,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(0, 31),
    has_min=True,
    dot_with="q8_0",
    halves=2,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        q = five_bits(blocks["qs"], blocks["qh"]).astype(np.float32)
        d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
        return d * q + m
