"""IQ4_XS: 8 groups of 32 weights as indices of the numbers of IQ4_NL, with 6-bit scales."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem, simd
from llamapy.quants._grid import Array, Floats
from llamapy.quants._groups import sum_of_squares
from llamapy.quants._iq4 import LADDER, VALUES, group_scale, pack
from llamapy.quants._weights import weigh
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import nearest_int

# The scales, 32 too large, in two parts: four low bits each, then two high bits each.
BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))])


@compiled
def numbers(block, group, values):
    """In a group, byte j holds value j in its low half and value j + 16 in its high half."""
    return simd.lookup_u8x32(values, simd.nibbles_u8x32(block + 8 + 16 * group))


@compiled
def put_scales(block, factor, to):
    """Write the scales of the 8 groups times `factor`, a vector: numbers of 6 bits, 32 too large,
    four of which lie in `scales_l`, two in `scales_h`; spread to a byte each."""
    low, high = np.uint64(mem.u32(block, 1)), np.uint64(mem.u16(block, 1))
    low = (low | (low << np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    low = (low | (low << np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    low = (low | (low << np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    high = (high | (high << np.uint64(24))) & np.uint64(0x000000FF000000FF)
    high = (high | (high << np.uint64(12))) & np.uint64(0x000F000F000F000F)
    high = (high | (high << np.uint64(6))) & np.uint64(0x0303030303030303)
    scales = simd.bytes_f32x8(low | (high << np.uint64(4)))
    simd.store_f32x8(to, factor * (scales - simd.splat_f32x8(np.float32(32))))


@compiled
def unpack(block, q, s, m, tables):
    values = mem.i64(tables, 0)
    for group in range(8):
        simd.store_u8x32(q + 32 * group, numbers(block, group, values))
    put_scales(block, simd.splat_f32x8(mem.f16(block, 0)), s)
    simd.store_f32x8(m, simd.zeros_f32x8())


@compiled
def dot(block, x, d, sums, tables):
    values, scales, acc = mem.i64(tables, 0), mem.local(32), simd.zeros_f32x8()
    put_scales(block, simd.load_f32x8(d), scales)
    for group in range(8):
        some = simd.as_signed(numbers(block, group, values))
        total = simd.to_f32x8(simd.dot_ss(some, simd.load_i8x32(x + 32 * group)))
        acc = simd.fma_f32x8(total, simd.splat_f32x8(mem.f32(scales, group)), acc)
    return acc * simd.splat_f32x8(mem.f16(block, 0))


@compiled
def group_scales(x, importance, ladder, scales):
    """Write the scales of a block's groups; return the one of the largest size."""
    w, size, widest = mem.local(128), np.float32(0), np.float32(0)
    sigma2 = sum_of_squares(x, 256) * np.float32(2 / 256)
    for group in range(8):
        of_group = importance + 128 * group if importance else importance
        weigh(x + 128 * group, of_group, 32, sigma2, np.float32(0), w)
        scale = group_scale(x + 128 * group, w, ladder)
        mem.put_f32(scales, group, scale)
        if abs(scale) > size:
            size, widest = abs(scale), scale
    return widest


@compiled
def encode_block(x, importance, ladder, block):
    scales = mem.local(32)
    d = -group_scales(x, importance, ladder, scales) / np.float32(32)
    inverse = np.float32(1) / d if d != 0 else np.float32(0)
    mem.put_f16(block, 0, d)
    high = np.int32(0)
    for group in range(8):
        scale = min(max(nearest_int(inverse * mem.f32(scales, group)), -32), 31)
        of_group = d * np.float32(scale)
        of_group = np.float32(1) / of_group if of_group != 0 else np.float32(0)
        pack(x + 128 * group, of_group, ladder, block + 8 + 16 * group)
        low = (scale + 32) & 15
        if group & 1:
            low = mem.u8(block + 4, group >> 1) | low << 4
        mem.put_u8(block + 4, group >> 1, low)
        high |= (scale + 32) >> 4 << 2 * group
    mem.put_u16(block + 2, 0, high)


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    n_blocks = n_per_row // 256
    for row in range(n_rows):
        for b in range(n_blocks):
            of_block = importance + 1024 * b if importance else importance
            at = row * n_blocks + b
            encode_block(src + 1024 * at, of_block, mem.i64(tables, 1), dst + 136 * at)
    return 0


class IQ4_XS(
    Codec,
    name="iq4_xs",
    type_id=23,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-127, 113),
    dot_with="q8_K",
):
    unpack = unpack
    dot = dot
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        low = np.stack([blocks["scales_l"] & 15, blocks["scales_l"] >> 4], axis=-1).reshape(-1, 8)
        high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
        scale = (low | high << 4).astype(np.float32) - np.float32(32)
        scale = blocks["d"].astype(np.float32)[:, None] * scale  # [n, 8]
        codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)  # [n, 8, 32]
        values = scale[..., None] * VALUES[codes].astype(np.float32)
        return values.reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return VALUES, LADDER
