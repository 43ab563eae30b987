"""IQ1_M: 16 groups of 16 weights, each as 2 shifted points of -1, 0, 1 and a 3-bit scale.

The grid has 2048 points. The block's factor has no field of its own: its 16 bits are the high
quarters of the four scale numbers.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._grid import Array, Floats, eighths, points
from llamapy.quants._groups import largest, sum_of_squares
from llamapy.quants._neighbours import CODES, make_once, search_tables
from llamapy.quants._ternary import LEAST, ascending, put_levels, settle
from llamapy.quants._weights import clear, small_scale, weigh, widest
from llamapy.quants.codec import Codec

# `qh`, a byte a group: for each point 3 high bits of its index and the sign of its shift (1/8).
BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])

SHIFT = np.float32(0.125)
TOO_SMALL = np.float32(1e-7)  # a group of smaller values becomes zero


@compiled
def factor(block):
    bits = 0
    for i in range(4):
        bits |= mem.u16(block + 48, i) >> 12 << 4 * i
    return mem.half_to_f32(np.uint16(bits))


@compiled
def unpack(block, q, s, m, tables):
    d, grid = factor(block), mem.i64(tables, 0)
    for k in range(32):
        high = mem.u8(block + 32, k >> 1) >> 4 * (k & 1)
        mem.put_u64(q, k, mem.u64(grid, mem.u8(block, k) | (high & 15) << 8))
    for group in range(16):
        scale = (mem.u16(block + 48, group >> 2) >> 3 * (group & 3)) & 7
        mem.put_f32(s, group, d * np.float32(2 * scale + 1) * np.float32(0.125))
        mem.put_f32(m, group, np.float32(0))


@compiled
def put_terms(x, w, order, terms):
    """Write what each of 16 values, in ascending order, adds to the sums: 8 rows of 8 float32 each.

    Rows 0, 2, 4 add to qx as level 0, 1, 2; row 6 as level 2 in its first half, as 1 in its second;
    odd rows likewise to qq. Lanes k and 4 + k are for the signs k: bit 1 says that the shift of the
    first point is down, bit 0 that of the second.
    """
    second_half = lanes.numbers() > lanes.splat_i(np.int32(3))
    for j in range(16):
        i, rows = mem.i32(order, j), terms + 256 * j
        value, weight = lanes.splat(mem.f32(x, i)), lanes.splat(mem.f32(w, i))
        bit = lanes.splat_i(np.int32(2 if i < 8 else 1))
        down = (lanes.numbers() & bit) > lanes.splat_i(np.int32(0))
        for level in range(3):
            q = lanes.splat(np.float32(level - 1) + SHIFT)
            q = lanes.select(down, lanes.splat(np.float32(level - 1) - SHIFT), q)
            lanes.store(rows, 16 * level, weight * q * value)
            lanes.store(rows, 16 * level + 8, weight * q * q)
        for k in range(0, 16, 8):
            as_one, as_two = lanes.load(rows, 16 + k), lanes.load(rows, 32 + k)
            lanes.store(rows, 48 + k, lanes.select(second_half, as_one, as_two))


@compiled
def put_candidates(terms, last, qx, qq, best, out):
    """Write qx and qq of the splits at `last` and last + 1, each with four signs, from those of the
    values before `last`. Returns whether one may be better than `best`.
    """
    for j in range(last, 16):
        row = 256 * j + (192 if j == last else 128)
        qx = qx + lanes.load(terms + row, 0)
        qq = qq + lanes.load(terms + row, 8)
    lanes.store(out, 0, qx)
    lanes.store(out, 8, qq)
    return lanes.any_lane((qq > lanes.splat(np.float32(0))) & (qx * qx > lanes.splat(best) * qq))


@compiled
def best_split(terms, split):
    """The scale of the best split; write its first and last place and its signs (-1 for none)."""
    scale, best, candidates = np.float32(0), LEAST, mem.local(64)
    start_x = start_q = lanes.splat(np.float32(0))
    mem.put_i32(split, 2, -1)
    for first in range(17):
        qx, qq = start_x, start_q
        for last in range(first, 17, 2):
            if put_candidates(terms, last, qx, qq, best, candidates):
                for i in range(8 if last < 16 else 4):
                    one_x, one_q = mem.f32(candidates, i), mem.f32(candidates, 8 + i)
                    if one_q > 0 and one_x * one_x > best * one_q:
                        scale = one_x / one_q
                        best = scale * one_x
                        mem.put_i32(split, 0, first)
                        mem.put_i32(split, 1, last + (i >> 2))
                        mem.put_i32(split, 2, i & 3)
            for j in range(last, min(last + 2, 16)):
                qx = qx + lanes.load(terms + 256 * j, 16)
                qq = qq + lanes.load(terms + 256 * j, 24)
        if first < 16:
            start_x = start_x + lanes.load(terms + 256 * first, 0)
            start_q = start_q + lanes.load(terms + 256 * first, 8)
    return scale


@compiled
def encode_group(x, w, search, group, block):
    """Write the indices and the signs of the shifts of a group; return its scale, or NaN where ggml
    aborts.
    """
    order, terms, levels = mem.local(64), mem.local(4096), mem.local(16)
    split, found, shifts = mem.local(16), mem.local(8), mem.local(8)
    if abs(largest(x, 16)) < TOO_SMALL:
        return np.float32(0)
    ascending(x, 16, order)
    put_terms(x, w, order, terms)
    scale = best_split(terms, split)
    signs = mem.i32(split, 2)
    if signs < 0:
        return np.float32(0)
    put_levels(order, 16, mem.i32(split, 0), mem.i32(split, 1), scale < 0, levels)
    if scale < 0:
        scale, signs = -scale, 3 - signs
    put_shifts(signs, shifts)
    scale = settle(x, w, 2, levels, shifts, scale, search, found)
    high = signs >> 1 << 3 | (signs & 1) << 7
    for k in range(2):
        mem.put_u8(block, 2 * group + k, mem.i32(found, k) & 255)
        high |= mem.i32(found, k) >> 8 << 4 * k
    mem.put_u8(block + 32, group, high)
    return scale


@compiled
def put_shifts(signs, shifts):
    mem.put_f32(shifts, 0, -SHIFT if signs & 2 else SHIFT)
    mem.put_f32(shifts, 1, -SHIFT if signs & 1 else SHIFT)


@compiled
def put_scales(x, w, scales, most, search, block):
    """Write the small scales of a block; return the factor that then fits best."""
    d = most / np.float32(15)
    inverse, qx, qq = np.float32(1) / d, np.float32(0), np.float32(0)
    for k in range(32):
        group = k >> 1
        small = small_scale(inverse * mem.f32(scales, group), 7)
        if k & 1 == 0:
            number = mem.u16(block + 48, group >> 2) | small << 3 * (group & 3)
            mem.put_u16(block + 48, group >> 2, number)
        high = mem.u8(block + 32, group) >> 4 * (k & 1)
        code = mem.u16(mem.i64(search, CODES), mem.u8(block, k) | (high & 7) << 8)
        shift = -SHIFT if high & 8 else SHIFT
        for i in range(8):
            level = np.float32((code >> 2 * i & 3) - 1)
            q = (level + shift) * np.float32(2 * small + 1)
            weight = mem.f32(w, 8 * k + i)
            qx += weight * q * mem.f32(x, 8 * k + i)
            qq += weight * q * q
    return qx / qq if qq > 0 else d


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks = tables + 8, n_per_row // 256
    w, scales, d = mem.local(1024), mem.local(64), mem.local(2)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, block = src + 1024 * at, dst + 56 * at
        of_block = importance + at % n_blocks * 1024 if importance else importance
        clear(block, 56)
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        weigh(x, of_block, 256, sigma2, np.float32(0), w)
        for group in range(16):
            scale = encode_group(x + 64 * group, w + 64 * group, search, group, block)
            mem.put_f32(scales, group, scale)
        most = widest(scales, 16)
        if not most >= 0:
            return 1 + at // n_blocks
        if most == 0:
            continue
        best = put_scales(x, w, scales, most, search, block)
        mem.put_f16(d, 0, best * np.float32(1.1125))
        for i in range(4):
            quarter = (mem.u16(d, 0) >> 4 * i & 15) << 12
            mem.put_u16(block + 48, i, mem.u16(block + 48, i) | quarter)
    return 0


class IQ1_M(
    Codec,
    name="iq1_m",
    type_id=29,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-9, 9),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        numbers = blocks["scales"]  # [n, 4]
        d = np.bitwise_or.reduce(numbers >> 12 << np.arange(0, 16, 4, dtype=np.uint16), axis=-1)
        d = d.view(np.float16).astype(np.float32)[:, None]
        scale = (numbers[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7
        scale = d * (2 * scale + 1).reshape(-1, 16).astype(np.float32)
        high = np.stack([blocks["qh"] & 15, blocks["qh"] >> 4], axis=-1).reshape(-1, 32)
        index = blocks["qs"] | (high & 7).astype(np.uint16) << 8
        shift = np.where(high & 8, np.float32(-0.125), np.float32(0.125))
        values = points("iq1")[index].astype(np.float32) + shift[..., None]  # [n, 32, 8]
        return (scale[..., None] * values.reshape(-1, 16, 16)).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return eighths(), *search_tables("iq1", 2, 0)
