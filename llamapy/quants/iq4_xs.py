"""IQ4_XS: 8 groups of 32 weights as indices of the numbers of IQ4_NL, with 6-bit scales."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats
from llamapy.quants._iq4 import VALUES
from llamapy.quants.codec import Codec

# The scales, 32 too large, in two parts: four low bits each, then two high bits each.
BLOCK = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", (8, 16))])


@compiled
def unpack(block, q, s, m, tables):
    """In a group, byte j holds value j in its low half and value j + 16 in its high half."""
    d, values = mem.f16(block, 0), mem.i64(tables, 0)
    for group in range(8):
        for j in range(16):
            byte = mem.u8(block + 8, 16 * group + j)
            mem.put_i8(q, 32 * group + j, mem.i8(values, byte & 15))
            mem.put_i8(q, 32 * group + j + 16, mem.i8(values, byte >> 4))
        low = (mem.u8(block + 4, group >> 1) >> 4 * (group & 1)) & 15
        high = (mem.u16(block + 2, 0) >> 2 * group) & 3
        mem.put_f32(s, group, d * np.float32((low | high << 4) - 32))
        mem.put_f32(m, group, np.float32(0))


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
        return (VALUES,)
