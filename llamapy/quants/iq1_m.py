"""IQ1_M: 16 groups of 16 weights, each as 2 shifted points of -1, 0, 1 and a 3-bit scale.

The grid has 2048 points. The block's factor has no field of its own: its 16 bits are the high
quarters of the four scale numbers.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats, points
from llamapy.quants.codec import Codec

# `qh`, a byte a group: for each point 3 high bits of its index and the sign of its shift (1/8).
BLOCK = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])


@compiled
def factor(block):
    bits = 0
    for i in range(4):
        bits |= mem.u16(block + 48, i) >> 12 << 4 * i
    return mem.half_to_f32(np.uint16(bits))


@compiled
def unpack(block, q, s, m, tables):
    """Eighths: 8 times the point, 1 more or less by the shift."""
    d, grid = factor(block), mem.i64(tables, 0)
    for k in range(32):
        high = mem.u8(block + 32, k >> 1) >> 4 * (k & 1)
        index = mem.u8(block, k) | (high & 7) << 8
        shift = -1 if high & 8 else 1
        for i in range(8):
            mem.put_i8(q, 8 * k + i, 8 * mem.i8(grid, 8 * index + i) + shift)
    for group in range(16):
        scale = (mem.u16(block + 48, group >> 2) >> 3 * (group & 3)) & 7
        mem.put_f32(s, group, d * np.float32(2 * scale + 1) * np.float32(0.125))
        mem.put_f32(m, group, np.float32(0))


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
        return (points("iq1"),)
