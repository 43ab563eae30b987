"""IQ2_XXS: 8 groups of 32 weights, each as 4 points of 8, 28 sign bits and a 4-bit scale.

The grid has 256 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats, full_signs, points, sign_masks, signed, with_signs
from llamapy.quants.codec import Codec

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
        return points("iq2_xxs"), sign_masks(7)
