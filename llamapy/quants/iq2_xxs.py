"""IQ2_XXS: 8 groups of 32 weights, each as 4 points of 8, 28 sign bits and a 4-bit scale.

The grid has 256 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._fit import ALL, fit, put_places
from llamapy.quants._grid import Array, Floats, full_signs, points, sign_masks, signed, with_signs
from llamapy.quants._groups import columns, sum_of_squares
from llamapy.quants._neighbours import make_once, search_tables
from llamapy.quants._weights import clear, prepare, small_scale, widest
from llamapy.quants.codec import Codec
from llamapy.quants.search import fit_positive

# A group: 4 bytes of indices; then, in 4 bytes, 4 x 7 sign bits and the scale.
GROUP = np.dtype([("index", "u1", 4), ("signs", "<u4")])
BLOCK = np.dtype([("d", "<f2"), ("groups", GROUP, 8)])


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for group in range(8):
        index, signs = mem.u32(block + 2, 2 * group), mem.u32(block + 2, 2 * group + 1)
        for k in range(4):
            point = mem.u64(grid, (index >> 8 * k) & 255)
            mask = mem.u64(masks, (signs >> 7 * k) & 127)
            mem.put_u64(q, 4 * group + k, with_signs(point, mask))
        scale = np.float32(0.5) + np.float32(signs >> 28)
        mem.put_f32(s, group, d * scale * np.float32(0.25))
        mem.put_f32(m, group, np.float32(0))


@compiled
def first_scales(x, w, scales):
    """Write the scales that fit the groups if every point were on the grid (with level 0 as 0)."""
    xt, wt, levels = mem.local(1024), mem.local(1024), mem.local(1024)
    columns(x, 32, 32, 8, xt)
    columns(w, 32, 32, 8, wt)
    lanes.store(scales, 0, fit_positive(xt, wt, 32, 4, levels))


@compiled
def fit_groups(src, importance, search, scales, signs, places):
    """Fit the groups of a block; as `fit_block`, but the trials are around the first scales."""
    x, w, root_w, codes = mem.local(1024), mem.local(1024), mem.local(1024), mem.local(512)
    sigma2, zero = sum_of_squares(src, 256) / np.float32(256), np.float32(0)
    for at in range(0, 1024, 128):
        of_group = importance + at if importance else importance
        bits, _ = prepare(src + at, of_group, 32, sigma2, zero, True, x + at, w + at, root_w + at)
        mem.put_i64(signs, at >> 7, bits)
    first_scales(x, w, scales)
    for group in range(8):
        at, first = 128 * group, mem.f32(scales, group)
        most, scale = first * np.float32(3), zero
        if most <= 0:
            mem.put_i64(signs, group, 0)
            clear(places + 16 * group, 16)
        else:
            scale = fit(x + at, w + at, root_w + at, most, first, codes, search)
            if scale < 0:
                scale = -scale
                mem.put_i64(signs, group, ~mem.i64(signs, group))
            if not scale >= 0:
                return scale
            put_places(codes, 4, search, places + 16 * group)
        mem.put_f32(scales, group, scale)
    return widest(scales, 8)


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    search, n_blocks, step = tables + 16, n_per_row // 256, 1024 if importance else 0
    scales, signs, places = mem.local(32), mem.local(64), mem.local(128)
    make_once(search)
    for at in range(n_rows * n_blocks):
        x, of_block, block = src + 1024 * at, importance + at % n_blocks * step, dst + 66 * at
        most = fit_groups(x, of_block, search, scales, signs, places)
        if not most >= 0:
            return 1 + at // n_blocks
        clear(block, 66)
        if most == 0:
            continue
        d = most / np.float32(31)
        mem.put_f16(block, 0, d)
        for group in range(8):
            scale = small_scale(np.float32(1) / d * mem.f32(scales, group), 15)
            seven = 0
            for k in range(4):
                mem.put_u8(block + 2, 8 * group + k, mem.i32(places, 4 * group + k))
                seven |= (mem.i64(signs, group) >> 8 * k & 127) << 7 * k
            mem.put_u32(block + 2, 2 * group + 1, seven | scale << 28)
    return 0


class IQ2_XXS(
    Codec,
    name="iq2_xxs",
    type_id=16,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-43, 43),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        groups = blocks["groups"]
        scale = np.float32(0.5) + (groups["signs"] >> 28).astype(np.float32)
        scale = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.25)  # [n, 8]
        shifts = np.arange(0, 28, 7, dtype=np.uint32)
        seven = ((groups["signs"][..., None] >> shifts) & 127).astype(np.uint8)
        values = signed(points("iq2_xxs")[groups["index"]], full_signs(seven))  # [n, 8, 4, 8]
        return (scale[:, :, None, None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq2_xxs"), sign_masks(7), *search_tables("iq2_xxs", 4, 13, ALL)
