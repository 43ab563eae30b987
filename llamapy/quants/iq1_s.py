"""IQ1_S: 8 groups of 32 weights, each as 4 points of -1, 0, 1, one shift and a 3-bit scale.

The grid has 2048 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._grid import Array, Floats, eighths, points
from llamapy.quants._groups import largest, sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._ternary import LEAST, ascending, put_levels, settle
from llamapy.quants._weights import clear, small_scale, weigh, widest
from llamapy.quants.codec import Codec

# `qh`, a number a group: 4 x 3 high bits of indices, the scale, the sign of the shift (1/8).
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])

SHIFT = np.float32(0.125)
TOO_SMALL = np.float32(1e-12)  # a group of smaller values becomes zero


@compiled
def unpack(block, q, s, m, tables):
    d, grid = mem.f16(block, 0), mem.i64(tables, 0)
    for group in range(8):
        high = mem.u16(block + 34, group)
        for k in range(4):
            index = mem.u8(block + 2, 4 * group + k) | ((high >> 3 * k) & 7) << 8
            index |= high >> 15 << 11
            mem.put_u64(q, 4 * group + k, mem.u64(grid, index))
        scale = d * np.float32(2 * ((high >> 12) & 7) + 1)
        mem.put_f32(s, group, scale * np.float32(0.125))
        mem.put_f32(m, group, np.float32(0))


@compiled
def put_sums(x, w, order, sum_x, sum_w):
    """Write for each of 33 places the sums of w * x and of w before it; NaN after them."""
    of_x = of_w = np.float32(0)
    for j in range(33):
        mem.put_f32(sum_x, j, of_x)
        mem.put_f32(sum_w, j, of_w)
        i = mem.i32(order, min(j, 31))
        of_x += mem.f32(w, i) * mem.f32(x, i)
        of_w += mem.f32(w, i)
    for j in range(33, 48):
        mem.put_f32(sum_w, j, np.float32(np.nan))


@compiled
def parts(sums, first, last, a, b, c):
    """a, b, c times the sums before, between and after the places first and last ... last + 7."""
    start, end = mem.f32(sums, 0), lanes.splat(mem.f32(sums, 32))
    at_first, at_last = mem.f32(sums, first), lanes.load(sums, last)
    before = lanes.splat((at_first - start) * a)
    return (
        before,
        (at_last - lanes.splat(at_first)) * lanes.splat(b),
        (end - at_last) * lanes.splat(c),
    )


@compiled
def put_candidates(sum_x, sum_w, first, last, best, out):
    """Write qx and qq of 8 splits with both shifts; whether one may be better than `best`."""
    better = False
    for side in range(2):
        shift = SHIFT if side == 0 else -SHIFT
        low, high = shift - np.float32(1), shift + np.float32(1)
        a, b, c = parts(sum_x, first, last, low, shift, high)
        qx = a + b + c
        a, b, c = parts(sum_w, first, last, low, shift, high)
        qq = a * lanes.splat(low) + b * lanes.splat(shift) + c * lanes.splat(high)
        lanes.store(out, 16 * side, qx)
        lanes.store(out, 16 * side + 8, qq)
        hit = (qq > lanes.splat(np.float32(0))) & (qx * qx > lanes.splat(best) * qq)
        better |= lanes.any_lane(hit)
    return better


@compiled
def best_split(sum_x, sum_w, split):
    """The scale of the best split; its first, last and shift (1 or -1, 0 if there is none)."""
    scale, best, candidates = np.float32(0), LEAST, mem.local(128)
    mem.put_i32(split, 2, 0)
    for first in range(33):
        for last in range(first, 33, 8):
            if not put_candidates(sum_x, sum_w, first, last, best, candidates):
                continue
            for i in range(16):
                at = (i >> 1) + 16 * (i & 1)
                qx, qq = mem.f32(candidates, at), mem.f32(candidates, at + 8)
                if qq > 0 and qx * qx > best * qq:
                    scale = qx / qq
                    best = scale * qx
                    mem.put_i32(split, 0, first)
                    mem.put_i32(split, 1, last + (i >> 1))
                    mem.put_i32(split, 2, 1 - 2 * (i & 1))
    return scale


@compiled
def encode_group(src, importance, sigma2, search, group, block):
    """Write the indices and the sign of the shift of a group; return its scale, or NaN where ggml
    aborts.
    """
    w, order, levels, shifts = mem.local(128), mem.local(128), mem.local(32), mem.local(16)
    sum_x, sum_w, split, found = mem.local(192), mem.local(192), mem.local(16), mem.local(16)
    weigh(src, importance, 32, sigma2, np.float32(0), w)
    if abs(largest(src, 32)) < TOO_SMALL:
        return np.float32(0)
    ascending(src, 32, order)
    put_sums(src, w, order, sum_x, sum_w)
    scale = best_split(sum_x, sum_w, split)
    shift = mem.i32(split, 2)
    if shift == 0:
        return np.float32(0)
    put_levels(order, 32, mem.i32(split, 0), mem.i32(split, 1), scale < 0, levels)
    if scale < 0:
        scale, shift = -scale, -shift
    for k in range(4):
        mem.put_f32(shifts, k, np.float32(shift) * SHIFT)
    scale = settle(src, w, 4, levels, shifts, scale, search, found)
    high = 0x8000 if shift < 0 else 0
    for k in range(4):
        mem.put_u8(block + 2, 4 * group + k, mem.i32(found, k) & 255)
        high |= mem.i32(found, k) >> 8 << 3 * k
    mem.put_u16(block + 34, group, high)
    return scale


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, scales, n_blocks = tables + 8, mem.local(32), n_per_row // 256
    step = 128 if importance else 0
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, block = src + 1024 * at, dst + 50 * at
        clear(block, 50)
        sigma2 = np.float32(2) * sum_of_squares(x, 256) / np.float32(256)
        for group in range(8):
            of_group = importance + (at % n_blocks * 8 + group) * step
            scale = encode_group(x + 128 * group, of_group, sigma2, search, group, block)
            mem.put_f32(scales, group, scale)
        most = widest(scales, 8)
        if not most >= 0:
            return 1 + at // n_blocks
        if most == 0:
            continue
        d = most / np.float32(15)
        mem.put_f16(block, 0, d * np.float32(1.125))
        for group in range(8):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 7)
            mem.put_u16(block + 34, group, mem.u16(block + 34, group) | scale << 12)
    return 0


class IQ1_S(
    Codec,
    name="iq1_s",
    type_id=19,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-9, 9),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        high = blocks["qh"]  # [n, 8]
        scale = (2 * ((high >> 12) & 7) + 1).astype(np.float32)
        scale = blocks["d"].astype(np.float32)[:, None] * scale
        shift = np.where(high & 0x8000, np.float32(-0.125), np.float32(0.125))
        bits = (high[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & 7  # [n, 8, 4]
        index = blocks["qs"].reshape(-1, 8, 4) | bits << 8
        values = points("iq1")[index].reshape(-1, 8, 32).astype(np.float32) + shift[..., None]
        return (scale[..., None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return eighths(), *search_tables("iq1", 4, 0)
