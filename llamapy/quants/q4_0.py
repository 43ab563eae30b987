"""Q4_0: 32 weights as 4-bit numbers around 8, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    for j in range(16):
        byte = mem.u8(block + 2, j)
        mem.put_i8(q, j, np.int8(byte & 15) - np.int8(8))
        mem.put_i8(q, j + 16, np.int8(byte >> 4) - np.int8(8))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


class Q4_0(
    Codec,
    name="q4_0",
    type_id=2,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-8, 7),
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        qs = blocks["qs"]
        q = np.concatenate([qs & 15, qs >> 4], axis=-1).astype(np.int8) - np.int8(8)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
