"""Q5_K: Q4_K with a fifth bit for each weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants.codec import Codec
from llamapy.quants.q4_k import (
    fit,
    group_scales,
    nibbles,
    put_scales,
    small_scales,
    total,
)

BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)


@compiled
def unpack(block, q, s, m, tables):
    """Low halves as in Q4_K; bit g of `qh` byte l is the fifth bit of value l of group g."""
    high = simd.load_u8x32(block + 16)
    for run in range(4):
        first, second = two_groups(block, high, run)
        simd.store_u8x32(q + 64 * run, first)
        simd.store_u8x32(q + 64 * run + 32, second)
    put_scales(block, s, m)


@compiled
def two_groups(block, high, run):
    """The levels of groups 2 run and 2 run + 1; high: the block's fifth bits."""
    packed, sixteen = simd.load_u8x32(block + 48 + 32 * run), simd.splat_u8x32(np.uint8(16))
    first = simd.left_u8x32(simd.right_u8x32(high, 2 * run), 4) & sixteen
    second = simd.left_u8x32(simd.right_u8x32(high, 2 * run), 3) & sixteen
    return simd.low_nibbles(packed) | first, simd.high_nibbles(packed) | second


@compiled
def dot(block, x, d, sums, tables):
    scales, minimums = small_scales(block)
    t, high = simd.scales_0_i16x16(scales, d + 32), simd.load_u8x32(block + 16)
    first, second = two_groups(block, high, 0)
    a, b = simd.dot_scaled_0(first, x, t), simd.dot_scaled_1(second, x + 32, t)
    first, second = two_groups(block, high, 1)
    a = a + simd.dot_scaled_2(first, x + 64, t)
    b = b + simd.dot_scaled_3(second, x + 96, t)
    t = simd.scales_4_i16x16(scales, d + 32)
    first, second = two_groups(block, high, 2)
    a = a + simd.dot_scaled_0(first, x + 128, t)
    b = b + simd.dot_scaled_1(second, x + 160, t)
    first, second = two_groups(block, high, 3)
    a = a + simd.dot_scaled_2(first, x + 192, t)
    b = b + simd.dot_scaled_3(second, x + 224, t)
    return total(block, d, (a, b), minimums, sums)


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """As Q4_K, with levels up to 31."""
    levels, n_blocks = mem.local(256), n_per_row // 256
    for i in range(n_rows * n_blocks):
        weights = importance + 1024 * (i % n_blocks) if importance else 0
        block = dst + 176 * i
        fit(src + 1024 * i, weights, 31, np.float32(-0.5), 15, 63, block, levels)
        pack(levels, block)


@compiled
def pack(levels, block):
    """256 bytes of 0 to 31 to the half bytes `qs` and the fifth bits `qh`."""
    one, four = lanes.splat_i(1), lanes.splat_i(4)
    low = lanes.splat_i(15)
    for l in range(0, 32, 8):
        high = one - one
        for run in range(4):
            first = lanes.load_bytes(levels, 64 * run + l)
            second = lanes.load_bytes(levels, 64 * run + 32 + l)
            lanes.store_bytes(block + 48, 32 * run + l, (first & low) | ((second & low) << four))
            bits = (first >> four) | ((second >> four) << one)
            high = high | (bits << lanes.splat_i(2 * run))
        lanes.store_bytes(block + 16, l, high)


class Q5_K(
    Codec,
    name="q5_K",
    type_id=13,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(0, 31),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack
    dot = dot
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale, minimum = group_scales(blocks)
        bits = np.arange(8, dtype=np.uint8)[:, None]
        high = ((blocks["qh"][:, None, :] >> bits) & np.uint8(1)) << np.uint8(4)
        q = (nibbles(blocks["qs"]) | high).astype(np.float32)
        return (scale * q - minimum).reshape(-1, 256)
