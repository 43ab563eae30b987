"""Q4_1: 32 weights as 4-bit numbers, a half-precision scale and minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    for j in range(16):
        byte = mem.u8(block + 4, j)
        mem.put_i8(q, j, byte & 15)
        mem.put_i8(q, j + 16, byte >> 4)
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, -mem.f16(block, 1))


class Q4_1(
    Codec,
    name="q4_1",
    type_id=3,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(0, 15),
    has_min=True,
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        qs = blocks["qs"]
        q = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.float32)
        d, m = (blocks[name].astype(np.float32)[:, None] for name in ("d", "m"))
        return d * q + m
