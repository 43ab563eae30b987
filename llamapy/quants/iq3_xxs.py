"""IQ3_XXS: 8 groups of 32 weights, each as 8 points of 4, 28 sign bits and a 4-bit scale.

The grid has 256 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats, full_signs, points, sign_masks, signed, with_signs
from llamapy.quants.codec import Codec

# `signs`: 4 x 7 sign bits (one set for two points) and the scale of a group.
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for group in range(8):
        signs = mem.u32(block + 66, group)
        for k in range(4):
            at = 8 * group + 2 * k
            low = np.uint64(mem.u32(grid, mem.u8(block + 2, at)))
            high = np.uint64(mem.u32(grid, mem.u8(block + 2, at + 1)))
            mask = mem.u64(masks, (signs >> 7 * k) & 127)
            mem.put_u64(q, 4 * group + k, with_signs(low | high << np.uint64(32), mask))
        scale = np.float32(0.5) + np.float32(signs >> 28)
        mem.put_f32(s, group, d * scale * np.float32(0.5))
        mem.put_f32(m, group, np.float32(0))


class IQ3_XXS(
    Codec,
    name="iq3_xxs",
    type_id=18,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-62, 62),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        signs = blocks["signs"]
        scale = np.float32(0.5) + (signs >> 28).astype(np.float32)
        scale = blocks["d"].astype(np.float32)[:, None] * scale * np.float32(0.5)  # [n, 8]
        shifts = np.arange(0, 28, 7, dtype=np.uint32)
        seven = ((signs[..., None] >> shifts) & 127).astype(np.uint8)  # [n, 8, 4]
        pairs = points("iq3_xxs")[blocks["qs"]].reshape(-1, 8, 4, 8)
        values = signed(pairs, full_signs(seven))
        return (scale[:, :, None, None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq3_xxs"), sign_masks(7)
