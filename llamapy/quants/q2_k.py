"""Q2_K: 16 groups of 16 weights as 2-bit numbers, with 4-bit scales and minimums.

Two half-precision factors turn the small scales and minimums of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants import _groups, search
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of half h holds the values l, l + 32, l + 64, l + 96 of its 128, lowest bits first."""
    two = simd.splat_u8x32(np.uint8(3))
    for half in range(2):
        packed = simd.load_u8x32(block + 16 + 32 * half)
        for k in range(4):
            simd.store_u8x32(q + 128 * half + 32 * k, simd.right_u8x32(packed, 2 * k) & two)
    d, dmin = mem.f16(block + 80, 0), mem.f16(block + 80, 1)
    for j in range(16):
        scale = mem.u8(block, j)
        mem.put_f32(s, j, d * np.float32(scale & 15))
        mem.put_f32(m, j, dmin * np.float32(scale >> 4))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """Fit each group, then quantize the fits, then the weights under these."""
    levels, found, n_blocks = mem.local(256), mem.local(256), n_per_row // 256
    for i in range(n_rows * n_blocks):
        weights = importance + 1024 * (i % n_blocks) if importance else 0
        x, block = src + 1024 * i, dst + 84 * i
        fit(x, weights, found, block)
        put_all_levels(x, found, block, levels)
        pack_two_bits(levels, block + 16)


@compiled
def fit(x, importance, found, block):
    """The fit of each group to `found` (four lists of 16), the scales to the block."""
    xt, wt, sums = mem.local(512), mem.local(512), mem.local(64)
    first, step, n_steps, sigma2 = np.float32(-0.5), np.float32(0.1), 15, np.float32(0)
    if importance:
        first, step, n_steps = np.float32(-0.9), np.float32(0.05), 36
        sigma2 = _groups.sum_of_squares(x, 256) / np.float32(256)
    for half in range(2):
        _groups.columns(x + 512 * half, 16, 16, 8, xt)
        if importance:
            _groups.columns(importance + 512 * half, 16, 16, 8, wt)
            _groups.put_weights(xt, wt, 16, sigma2, wt)
        else:
            for i in range(16):
                lanes.store(wt, 8 * i, lanes.absolute(lanes.load(xt, 8 * i)))
        lanes.store(sums, 8 * half, _groups.total(wt, 16))
        out, absolute = found + 32 * half, importance == 0
        search.fit_scale_min(xt, wt, 16, 3, first, step, n_steps, absolute, out, 16)
    if importance:
        fit_scales(found, sums, block)
    else:
        round_scales(found, block)


@compiled
def round_scales(found, block):
    """Scales and minimums as 15ths of the largest, with their factors, to the block."""
    for k in range(2):
        most = np.float32(0)
        for j in range(16):
            one = mem.f32(found, 16 * k + j)
            most = one if one > most else most
        inverse = np.float32(15) / most if most > 0 else np.float32(0)
        for j in range(0, 16, 8):
            small = lanes.nearest(lanes.splat(inverse) * lanes.load(found, 16 * k + j))
            if k == 1:
                small = lanes.load_bytes(block, j) | (small << lanes.splat_i(4))
            lanes.store_bytes(block, j, small)
        mem.put_f16(block + 80, k, most / np.float32(15))


@compiled
def fit_scales(found, sums, block):
    """As `round_scales`, fitted by the weights: lane 0 the scales, lane 1 the minimums."""
    xs, ws, fitted = mem.local(512), mem.local(512), mem.local(512)
    for i in range(16):
        lanes.store(ws, 8 * i, lanes.splat(mem.f32(sums, i)))
        lanes.store(xs, 8 * i, lanes.splat(0))
        mem.put_f32(xs, 8 * i, mem.f32(found, i))
        mem.put_f32(xs, 8 * i + 1, mem.f32(found, 16 + i))
    scale = search.fit_positive(xs, ws, 16, 15, fitted)
    for i in range(16):
        low, high = np.int64(mem.f32(fitted, 8 * i)), np.int64(mem.f32(fitted, 8 * i + 1))
        mem.put_u8(block, i, low | (high << 4))
    mem.put_f16(block + 80, 0, lanes.lane(scale, 0))
    mem.put_f16(block + 80, 1, lanes.lane(scale, 1))


@compiled
def put_all_levels(x, found, block, levels):
    """Levels of 256 weights under the block's scales; under a scale of 0 those of the search."""
    for j in range(16):
        small, out = mem.u8(block, j), levels + 16 * j
        d = mem.f16(block + 80, 0) * np.float32(small & 15)
        if d != 0:
            dm = mem.f16(block + 80, 1) * np.float32(small >> 4)
            _groups.put_levels(x + 64 * j, 16, d, dm, 0, 3, out)
        else:
            inverse, base = mem.f32(found, 32 + j), mem.f32(found, 48 + j)
            _groups.put_searched(x + 64 * j, 16, inverse, base, 0, 3, out)


@compiled
def pack_two_bits(levels, out):
    """256 bytes, their two low bits each to 64 bytes: the reverse of `two_bits`."""
    for j in range(0, 64, 8):
        at, packed = 128 * (j // 32) + j % 32, lanes.splat_i(0)
        for k in range(4):
            two = lanes.load_bytes(levels, at + 32 * k) & lanes.splat_i(3)
            packed = packed | (two << lanes.splat_i(2 * k))
        lanes.store_bytes(out, j, packed)


class Q2_K(
    Codec,
    name="q2_K",
    type_id=10,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(0, 3),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
        scale = d * (blocks["scales"] & 15).astype(np.float32)
        minimum = dmin * (blocks["scales"] >> 4).astype(np.float32)
        q = two_bits(blocks["qs"]).reshape(-1, 16, 16).astype(np.float32)
        return (scale[..., None] * q - minimum[..., None]).reshape(-1, 256)


def two_bits(qs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 [n, 64] -> [n, 256]: 32 bytes hold 4 runs of 32 values, lowest bits first."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return ((qs.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)).reshape(-1, 256)
