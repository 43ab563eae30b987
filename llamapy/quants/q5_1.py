"""Q5_1: 32 weights as 5-bit numbers, a half-precision scale and minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.q5_0 import five_bits

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Low halves as in Q4_1; bit j of the 32 bits `qh` is the fifth bit of value j."""
    high = mem.u32(block + 4, 0)
    for j in range(16):
        byte = mem.u8(block + 8, j)
        mem.put_i8(q, j, (byte & 15) | (((high >> j) & 1) << 4))
        mem.put_i8(q, j + 16, (byte >> 4) | (((high >> (j + 16)) & 1) << 4))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, -mem.f16(block, 1))


class Q5_1(
    Codec,
    name="q5_1",
    type_id=7,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(0, 31),
    has_min=True,
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        q = five_bits(blocks["qs"], blocks["qh"]).astype(np.float32)
        d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
        return d * q + m
