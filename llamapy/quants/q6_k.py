"""Q6_K: 16 groups of 16 weights as 6-bit numbers around 32, with 8-bit signed scales.

One half-precision factor turns the small scales of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants import _groups, search
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


@compiled
def quarters(block, half):
    """Four times 32 numbers, from 0 to 63. In each half, value 32 k + l has its low bits in half
    k // 2 of `ql` byte 32 (k % 2) + l, and its two top bits at bit 2 k of `qh` byte l.
    """
    bits = simd.splat_u8x32(np.uint8(48))
    first, second = simd.load_u8x32(block + 64 * half), simd.load_u8x32(block + 64 * half + 32)
    top = simd.load_u8x32(block + 128 + 32 * half)
    a = simd.low_nibbles(first) | (simd.left_u8x32(top, 4) & bits)
    b = simd.low_nibbles(second) | (simd.left_u8x32(top, 2) & bits)
    c = simd.high_nibbles(first) | (top & bits)
    d = simd.high_nibbles(second) | (simd.right_u8x32(top, 2) & bits)
    return a, b, c, d


@compiled
def unpack(block, q, s, m, tables):
    middle = simd.splat_i8x32(np.int8(32))
    for half in range(2):
        out = q + 128 * half
        a, b, c, d = quarters(block, half)
        simd.store_i8x32(out, simd.as_signed(a) - middle)
        simd.store_i8x32(out + 32, simd.as_signed(b) - middle)
        simd.store_i8x32(out + 64, simd.as_signed(c) - middle)
        simd.store_i8x32(out + 96, simd.as_signed(d) - middle)
    scale = simd.splat_f32x16(mem.f16(block + 208, 0))
    simd.store_f32x16(s, scale * simd.load_i8_f32x16(block + 192))
    simd.store_f32x16(m, simd.zeros_f32x16())


@compiled
def add(products, d, acc):
    """acc plus scaled products times an activation's scale."""
    return simd.fma_f32x8(simd.to_f32x8(products), simd.splat_f32x8(mem.f32(d, 0)), acc)


@compiled
def dot(block, x, d, sums, tables):
    """Scaled products are within 31 bits: 63 * 127 * 4 * 128."""
    small, acc = block + 192, simd.zeros_f32x8()
    t = simd.half_scales_0_i16x16(small)
    p, q, r, s = quarters(block, 0)
    acc = add(simd.dot_scaled_0(p, x, t), d, acc)
    acc = add(simd.dot_scaled_1(q, x + 32, t), d + 4, acc)
    acc = add(simd.dot_scaled_2(r, x + 64, t), d + 8, acc)
    acc = add(simd.dot_scaled_3(s, x + 96, t), d + 12, acc)
    t = simd.half_scales_4_i16x16(small)
    p, q, r, s = quarters(block, 1)
    acc = add(simd.dot_scaled_0(p, x + 128, t), d + 16, acc)
    acc = add(simd.dot_scaled_1(q, x + 160, t), d + 20, acc)
    acc = add(simd.dot_scaled_2(r, x + 192, t), d + 24, acc)
    acc = add(simd.dot_scaled_3(s, x + 224, t), d + 28, acc)
    middle = simd.splat_f32x8(np.float32(32))
    offset = simd.folded_f32x8(simd.load_i8_f32x16(small) * simd.load_f32x16(sums))
    return (acc - middle * offset) * simd.splat_f32x8(mem.f16(block + 208, 0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """Fit each group, then quantize the scales, then the weights under these."""
    levels, scales, n_blocks = mem.local(256), mem.local(64), n_per_row // 256
    for i in range(n_rows * n_blocks):
        x, block = src + 1024 * i, dst + 210 * i
        weights = importance + 1024 * (i % n_blocks) if importance else 0
        fit(x, weights, scales, levels)
        most = _groups.largest(scales, 16)
        if abs(most) < np.float32(1e-15):
            for j in range(210):
                mem.put_u8(block, j, 0)
            continue
        inverse = np.float32(-128) / most
        mem.put_f16(block + 208, 0, np.float32(1) / inverse)
        for j in range(0, 16, 8):
            small = lanes.nearest(lanes.splat(inverse) * lanes.load(scales, j))
            lanes.store_bytes(block + 192, j, lanes.minimum(small, lanes.splat_i(127)))
        for j in range(16):
            d = mem.f16(block + 208, 0) * np.float32(mem.i8(block + 192, j))
            if d != 0:
                _groups.put_levels(x + 64 * j, 16, d, np.float32(0), -32, 31, levels + 16 * j)
        pack(levels, block)


@compiled
def fit(x, importance, scales, levels):
    """Scales of the groups, and the levels of the search (0 to 63, as bytes)."""
    xt, wt = mem.local(512), mem.local(512)
    for half in range(2):
        _groups.columns(x + 512 * half, 16, 16, 8, xt)
        if importance:
            _groups.columns(importance + 512 * half, 16, 16, 8, wt)
        else:
            for i in range(16):
                value = lanes.load(xt, 8 * i)
                lanes.store(wt, 8 * i, value * value)
        scale, inverse = search.fit_scale(xt, wt, 16, 32)
        lanes.store(scales, 8 * half, scale)
        for k in range(8):
            at, inv = 8 * half + k, lanes.lane(inverse, k)
            out = levels + 16 * at
            _groups.put_searched(x + 64 * at, 16, inv, np.float32(0), -32, 31, out)


@compiled
def pack(levels, block):
    """256 bytes of 0 to 63 to the half bytes `ql` and the two upper bits `qh`."""
    four, low = lanes.splat_i(4), lanes.splat_i(15)
    for half in range(2):
        for l in range(0, 32, 8):
            top = lanes.splat_i(0)
            for k in range(4):
                one = lanes.load_bytes(levels, 128 * half + 32 * k + l) >> four
                top = top | (one << lanes.splat_i(2 * k))
            lanes.store_bytes(block + 128 + 32 * half, l, top)
        for l in range(0, 64, 8):
            first = lanes.load_bytes(levels, 128 * half + l) & low
            second = lanes.load_bytes(levels, 128 * half + 64 + l) & low
            lanes.store_bytes(block + 64 * half, l, first | (second << four))


class Q6_K(
    Codec,
    name="q6_K",
    type_id=14,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-32, 31),
    dot_with="q8_K",
):
    unpack = unpack
    dot = dot
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        ql = blocks["ql"].reshape(-1, 2, 64)
        low = np.concatenate([ql & 15, ql >> 4], axis=-1).reshape(-1, 256)
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        high = (blocks["qh"].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
        q = (low | high.reshape(-1, 256) << np.uint8(4)).astype(np.int8) - np.int8(32)
        d = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
        return (d[..., None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)
