"""IQ1_S: 8 groups of 32 weights, each as 4 points of -1, 0, 1, one shift and a 3-bit scale.

The grid has 2048 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats, points
from llamapy.quants.codec import Codec

# `qh`, a number a group: 4 x 3 high bits of indices, the scale, the sign of the shift (1/8).
BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])


@compiled
def unpack(block, q, s, m, tables):
    """Eighths: 8 times the point, 1 more or less by the shift."""
    d, grid = mem.f16(block, 0), mem.i64(tables, 0)
    for group in range(8):
        high = mem.u16(block + 34, group)
        shift = -1 if high & 0x8000 else 1
        for k in range(4):
            index = mem.u8(block + 2, 4 * group + k) | ((high >> 3 * k) & 7) << 8
            for i in range(8):
                value = 8 * mem.i8(grid, 8 * index + i) + shift
                mem.put_i8(q, 32 * group + 8 * k + i, value)
        scale = d * np.float32(2 * ((high >> 12) & 7) + 1)
        mem.put_f32(s, group, scale * np.float32(0.125))
        mem.put_f32(m, group, np.float32(0))


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
        return (points("iq1"),)
