"""Q3_K: 16 groups of 16 weights as 3-bit numbers around 4, with 6-bit signed scales.

One half-precision factor turns the small scales of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants import _groups, search
from llamapy.quants.codec import Codec
from llamapy.quants.q2_k import pack_two_bits, two_bits

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])


@compiled
def scale_of(scales, j):
    """Scale j of 16: four bits in bytes 0-7 (8-15 in the high halves), two upper ones in 8-11."""
    low = (mem.u8(scales, j % 8) >> (4 * (j // 8))) & 15
    high = (mem.u8(scales + 8, j % 4) >> (2 * (j // 4))) & 3
    return (low | (high << 4)) - 32


@compiled
def unpack(block, q, s, m, tables):
    """Low bits as in Q2_K; bit k of `hmask` byte l is set if value 32 k + l is not lowered by 4."""
    two, four, mask = (
        simd.splat_u8x32(np.uint8(3)),
        simd.splat_u8x32(np.uint8(4)),
        simd.load_u8x32(block),
    )
    lowered = simd.splat_i8x32(np.int8(4))
    for half in range(2):
        packed = simd.load_u8x32(block + 32 + 32 * half)
        for k in range(4):
            high = simd.left_u8x32(simd.right_u8x32(mask, 4 * half + k), 2) & four
            numbers = simd.as_signed((simd.right_u8x32(packed, 2 * k) & two) | high)
            simd.store_i8x32(q + 128 * half + 32 * k, numbers - lowered)
    d = mem.f16(block + 108, 0)
    for j in range(16):
        mem.put_f32(s, j, d * np.float32(scale_of(block + 96, j)))
        mem.put_f32(m, j, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """Fit each group, then quantize the fits, then the weights under these."""
    levels, scales, n_blocks = mem.local(256), mem.local(64), n_per_row // 256
    for i in range(n_rows * n_blocks):
        x, block = src + 1024 * i, dst + 110 * i
        if importance:
            fit_weighted(x, importance + 1024 * (i % n_blocks), scales, block, levels)
        else:
            fit(x, scales, block, levels)
        for j in range(16):
            d = mem.f16(block + 108, 0) * np.float32(scale_of(block + 96, j))
            if d != 0:
                _groups.put_levels(x + 64 * j, 16, d, np.float32(0), -4, 3, levels + 16 * j)
        pack_two_bits(levels, block + 32)
        for l in range(0, 32, 8):
            mask = lanes.splat_i(0)
            for k in range(8):
                high = lanes.load_bytes(levels, 32 * k + l) >> lanes.splat_i(2)
                mask = mask | (high << lanes.splat_i(k))
            lanes.store_bytes(block, l, mask)


@compiled
def fit(x, scales, block, levels):
    """Without importances: levels of the search (0 to 7, as bytes), and the block's scales."""
    xt, lt, small = mem.local(512), mem.local(512), mem.local(16)
    for half in range(2):
        _groups.columns(x + 512 * half, 16, 16, 8, xt)
        lanes.store(scales, 8 * half, search.refine_scale(xt, 16, 4, lt))
        for k in range(8):
            for i in range(16):
                l = np.int64(mem.f32(lt, 8 * i + k))
                mem.put_u8(levels, 128 * half + 16 * k + i, l)
    most = _groups.largest(scales, 16)
    inverse = np.float32(-32) / most if most != 0 else np.float32(0)
    for j in range(0, 16, 8):
        value = lanes.splat(inverse) * lanes.load(scales, j)
        lanes.store_bytes(small, j, lanes.bounded(value, -32, 31) + lanes.splat_i(32))
    mem.put_f16(block + 108, 0, np.float32(1) / inverse if most != 0 else np.float32(0))
    pack_scales(small, block + 96, most != 0)


@compiled
def fit_weighted(x, importance, scales, block, levels):
    """As `fit`, with importances."""
    xt, wt, sums, small = mem.local(512), mem.local(512), mem.local(64), mem.local(16)
    zero = np.float32(0)
    sigma2 = np.float32(2) * _groups.sum_of_squares(x, 256) / np.float32(256)
    for half in range(2):
        _groups.columns(x + 512 * half, 16, 16, 8, xt)
        _groups.columns(importance + 512 * half, 16, 16, 8, wt)
        _groups.put_weights(xt, wt, 16, sigma2, wt)
        lanes.store(sums, 8 * half, _groups.total(wt, 16))
        scale, inverse = search.fit_scale(xt, wt, 16, 4)
        lanes.store(scales, 8 * half, scale)
        for k in range(8):
            group = 8 * half + k
            inv = lanes.lane(inverse, k)
            _groups.put_searched(x + 64 * group, 16, inv, zero, -4, 3, levels + 16 * group)
    for i in range(16):  # the scales are a group of 16 now, the same in all lanes
        lanes.store(wt, 8 * i, lanes.splat(mem.f32(sums, i)))
        lanes.store(xt, 8 * i, lanes.splat(mem.f32(scales, i)))
    scale, inverse = search.fit_scale(xt, wt, 16, 32)
    _groups.put_searched(scales, 16, lanes.lane(inverse, 0), zero, -32, 31, small)
    mem.put_f16(block + 108, 0, lanes.lane(scale, 0))
    pack_scales(small, block + 96, True)


@compiled
def pack_scales(small, out, any_scale):
    """Sixteen scales of 0 to 63, a byte each, to the 12 bytes that `scale_of` reads; else zeros."""
    for j in range(12):
        mem.put_u8(out, j, 0)
    for j in range(16 if any_scale else 0):
        scale = mem.u8(small, j)
        mem.put_u8(out, j % 8, mem.u8(out, j % 8) | ((scale & 15) << (4 * (j // 8))))
        high = mem.u8(out, 8 + j % 4) | ((scale >> 4) << (2 * (j // 4)))
        mem.put_u8(out, 8 + j % 4, high)


class Q3_K(
    Codec,
    name="q3_K",
    type_id=11,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-4, 3),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        low, high = blocks["scales"][:, :8], blocks["scales"][:, 8:]
        low = np.concatenate([low & 15, low >> 4], axis=-1)
        high = np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
        scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
        d = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
        bits = np.arange(8, dtype=np.uint8)[:, None]
        upper = ((blocks["hmask"][:, None, :] >> bits) & np.uint8(1)) << np.uint8(2)
        q = (two_bits(blocks["qs"]) | upper.reshape(-1, 256)).astype(np.int8) - np.int8(4)
        return (d[..., None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)
