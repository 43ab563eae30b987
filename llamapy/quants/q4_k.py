"""Q4_K: 8 groups of 32 weights as 4-bit numbers, with 6-bit scales and minimums.

Two half-precision factors turn the small scales and minimums of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants import _groups, search
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])


@compiled
def scale_and_min(scales, j):
    """Scale and minimum j of 8: low six bits of bytes j and j + 4, whose top bits belong to 4-7."""
    if j < 4:
        return mem.u8(scales, j) & 63, mem.u8(scales, j + 4) & 63
    low = mem.u8(scales, j + 4)
    scale = (low & 15) | ((mem.u8(scales, j - 4) >> 6) << 4)
    return scale, (low >> 4) | ((mem.u8(scales, j) >> 6) << 4)


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of run r of 32 holds value l of group 2 r (low half) and of group 2 r + 1 (high)."""
    for run in range(4):
        packed = simd.load_u8x32(block + 16 + 32 * run)
        simd.store_u8x32(q + 64 * run, simd.low_nibbles(packed))
        simd.store_u8x32(q + 64 * run + 32, simd.high_nibbles(packed))
    put_scales(block, s, m)


@compiled
def dot(block, x, d, sums, tables):
    scales, minimums = small_scales(block)
    t = simd.scales_0_i16x16(scales, d + 32)
    first, second = simd.load_u8x32(block + 16), simd.load_u8x32(block + 48)
    a = simd.dot_scaled_0(simd.low_nibbles(first), x, t)
    b = simd.dot_scaled_1(simd.high_nibbles(first), x + 32, t)
    a = a + simd.dot_scaled_2(simd.low_nibbles(second), x + 64, t)
    b = b + simd.dot_scaled_3(simd.high_nibbles(second), x + 96, t)
    t = simd.scales_4_i16x16(scales, d + 32)
    first, second = simd.load_u8x32(block + 80), simd.load_u8x32(block + 112)
    a = a + simd.dot_scaled_0(simd.low_nibbles(first), x + 128, t)
    b = b + simd.dot_scaled_1(simd.high_nibbles(first), x + 160, t)
    a = a + simd.dot_scaled_2(simd.low_nibbles(second), x + 192, t)
    b = b + simd.dot_scaled_3(simd.high_nibbles(second), x + 224, t)
    return total(block, d, (a, b), minimums, sums)


@compiled
def total(block, d, products, minimums, sums):
    """The eight lanes of a block's result; `products`: two sums with scales in integers, each of
    which fits 31 bits: 4 * 2 * 31 * 127 * 2 * 63 * 520."""
    unit = simd.splat_f32x8(mem.f16(block, 0) * mem.f32(d, 12))
    m = simd.splat_f32x8(mem.f16(block, 1)) * simd.bytes_f32x8(minimums)
    whole = simd.to_f32x8(products[0]) + simd.to_f32x8(products[1])
    return whole * unit - m * simd.load_f32x8(sums)


@compiled
def put_scales(block, s, m):
    """Write the scales and minimums of a block."""
    scales, minimums = scale_vectors(block)
    simd.store_f32x8(s, scales)
    simd.store_f32x8(m, minimums)


@compiled
def small_scales(block):
    """The scales and minimums of the 8 groups of a Q4_K or Q5_K block as bytes (layout:
    scale_and_min)."""
    a, b = np.uint64(mem.u32(block, 1)), np.uint64(mem.u32(block, 2))
    c = np.uint64(mem.u32(block, 3))
    six, four, two = np.uint64(0x3F3F3F3F), np.uint64(0x0F0F0F0F), np.uint64(0x30303030)
    scales = (a & six) | (((c & four) | ((a >> np.uint64(2)) & two)) << np.uint64(32))
    high = ((c >> np.uint64(4)) & four) | ((b >> np.uint64(2)) & two)
    minimums = (b & six) | (high << np.uint64(32))
    return scales, minimums


@compiled
def scale_vectors(block):
    """The same as they are."""
    scales, minimums = small_scales(block)
    s = simd.splat_f32x8(mem.f16(block, 0)) * simd.bytes_f32x8(scales)
    return s, simd.splat_f32x8(mem.f16(block, 1)) * simd.bytes_f32x8(minimums)


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """Fit each group, then quantize the fits, then the weights under these."""
    levels, n_blocks = mem.local(256), n_per_row // 256
    for i in range(n_rows * n_blocks):
        weights = importance + 1024 * (i % n_blocks) if importance else 0
        block = dst + 144 * i
        fit(src + 1024 * i, weights, 15, np.float32(-1.0), 20, 255, block, levels)
        for j in range(0, 128, 8):
            at = 64 * (j // 32) + j % 32
            high = lanes.load_bytes(levels, at + 32) << lanes.splat_i(4)
            lanes.store_bytes(block + 16, j, lanes.load_bytes(levels, at) | high)


@compiled
def fit(x, importance, n_max, first, n_steps, limit, block, levels):
    """Put the scales of a block, and as bytes its 256 levels of 0 to n_max.

    The search takes n_steps trials from `first` on; with importances it has its own, and small
    scales and minimums are kept at most `limit`.
    """
    xt, wt = mem.local(1024), mem.local(1024)
    found, small, step = mem.local(128), mem.local(16), np.float32(0.1)
    _groups.columns(x, 32, 32, 8, xt)
    if importance:
        sigma2 = np.float32(2) * _groups.sum_of_squares(x, 256) / np.float32(256)
        _groups.columns(importance, 32, 32, 8, wt)
        _groups.put_weights(xt, wt, 32, sigma2, wt)
        first, step, n_steps = np.float32(-0.9), np.float32(0.05), 36
    else:
        put_plain_weights(xt, wt)
    search.fit_scale_min(xt, wt, 32, n_max, first, step, n_steps, False, found, 8)
    if importance:
        fit_scales(found, wt, limit, block, small)
    else:
        round_scales(found, block, small)
    pack_scales(small, block + 4)
    put_all_levels(x, n_max, found, block, levels)


@compiled
def put_plain_weights(xt, wt):
    """Without importances: root mean square of the group plus the weight's own size."""
    square = lanes.splat(0)
    for i in range(32):
        value = lanes.load(xt, 8 * i)
        square = square + value * value
    average = lanes.root(square / lanes.splat(32))
    for i in range(32):
        lanes.store(wt, 8 * i, average + lanes.absolute(lanes.load(xt, 8 * i)))


@compiled
def round_scales(found, block, small):
    """Scales and minimums as 63rds of the largest: factors to the block, 16 bytes to `small`."""
    for k in range(2):
        most = np.float32(0)
        for j in range(8):
            one = mem.f32(found, 8 * k + j)
            most = one if one > most else most
        inverse = np.float32(63) / most if most > 0 else np.float32(0)
        whole = lanes.nearest(lanes.splat(inverse) * lanes.load(found, 8 * k))
        whole = lanes.minimum(whole & lanes.splat_i(255), lanes.splat_i(63))
        lanes.store_bytes(small, 8 * k, whole)
        mem.put_f16(block, k, most / np.float32(63))


@compiled
def fit_scales(found, wt, limit, block, small):
    """As `round_scales`, fitted by the weights: lane 0 the scales, lane 1 the minimums."""
    sums, fitted = _groups.total(wt, 32), mem.local(256)
    xs, ws = mem.local(256), mem.local(256)
    for i in range(8):
        lanes.store(ws, 8 * i, lanes.splat(lanes.lane(sums, i)))
        lanes.store(xs, 8 * i, lanes.splat(0))
        mem.put_f32(xs, 8 * i, mem.f32(found, i))
        mem.put_f32(xs, 8 * i + 1, mem.f32(found, 8 + i))
    scale = search.fit_positive(xs, ws, 8, 63, fitted)
    for k in range(2):
        for i in range(8):
            mem.put_u8(small, 8 * k + i, min(limit, np.int64(mem.f32(fitted, 8 * i + k))))
        mem.put_f16(block, k, lanes.lane(scale, k))


@compiled
def pack_scales(small, out):
    """Eight scales and eight minimums, a byte each, to the 12 bytes that `scale_and_min` reads."""
    for j in range(4):
        scale, minimum = mem.u8(small, j + 4), mem.u8(small, j + 12)
        mem.put_u8(out, j, mem.u8(small, j) | ((scale >> 4) << 6))
        mem.put_u8(out, j + 4, mem.u8(small, j + 8) | ((minimum >> 4) << 6))
        mem.put_u8(out, j + 8, (scale & 15) | ((minimum & 15) << 4))


@compiled
def put_all_levels(x, n_max, found, block, levels):
    """Levels of 256 weights under the block's scales; under a scale of 0 those of the search."""
    for j in range(8):
        scale, minimum = scale_and_min(block + 4, j)
        d = mem.f16(block, 0) * np.float32(scale)
        if d != 0:
            dm = mem.f16(block, 1) * np.float32(minimum)
            _groups.put_levels(x + 128 * j, 32, d, dm, 0, n_max, levels + 32 * j)
        else:
            inverse, base = mem.f32(found, 16 + j), mem.f32(found, 24 + j)
            _groups.put_searched(x + 128 * j, 32, inverse, base, 0, n_max, levels + 32 * j)


def group_scales(blocks: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scales and minimums of the groups of Q4_K or Q5_K blocks: two float32 [n, 8, 1]."""
    first, second, last = (blocks["scales"][:, i : i + 4] for i in (0, 4, 8))
    scale = np.concatenate([first & 63, (last & 15) | (first >> 6 << 4)], axis=-1)
    minimum = np.concatenate([second & 63, (last >> 4) | (second >> 6 << 4)], axis=-1)
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    return (d * scale.astype(np.float32))[..., None], (dmin * minimum.astype(np.float32))[..., None]


def nibbles(qs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 [n, 128] -> [n, 8, 32]: 32 bytes hold two groups, the first in the low halves."""
    runs = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


class Q4_K(
    Codec,
    name="q4_K",
    type_id=12,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(0, 15),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack
    dot = dot
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale, minimum = group_scales(blocks)
        q = nibbles(blocks["qs"]).astype(np.float32)
        return (scale * q - minimum).reshape(-1, 256)
