"""IQ2_XS: 16 groups of 16 weights, each as 2 points of 8 with 7 sign bits, and a 4-bit scale.

The grid has 512 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import (
    Array,
    Floats,
    full_signs,
    nibbles,
    points,
    sign_masks,
    signed,
    with_signs,
)
from llamapy.quants.codec import Codec

# Each number of `qs`: 9 bits of index, 7 sign bits.
BLOCK = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for k in range(32):
        code = mem.u16(block + 2, k)
        point, mask = mem.u64(grid, code & 511), mem.u64(masks, code >> 9)
        mem.put_u64(q, k, with_signs(point, mask))
    for group in range(16):
        scale = (mem.u8(block + 66, group >> 1) >> 4 * (group & 1)) & 15
        scale = np.float32(0.5) + np.float32(scale)
        mem.put_f32(s, group, d * scale * np.float32(0.25))
        mem.put_f32(m, group, np.float32(0))


class IQ2_XS(
    Codec,
    name="iq2_xs",
    type_id=17,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-43, 43),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        d, qs = blocks["d"].astype(np.float32)[:, None], blocks["qs"]
        scale = d * (np.float32(0.5) + nibbles(blocks["scales"])) * np.float32(0.25)  # [n, 16]
        values = signed(points("iq2_xs")[qs & 511], full_signs((qs >> 9).astype(np.uint8)))
        return (scale[..., None] * values.reshape(-1, 16, 16)).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq2_xs"), sign_masks(7)
