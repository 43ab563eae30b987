"""Q2_0: 64 weights as -1, 0, 1 or 2, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Byte j holds the values 4 j to 4 j + 3, lowest bits first, each raised by 1."""
    for j in range(16):
        byte = mem.u8(block + 2, j)
        for k in range(4):
            mem.put_i8(q, 4 * j + k, ((byte >> (2 * k)) & 3) - 1)
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


class Q2_0(
    Codec,
    name="q2_0",
    type_id=42,
    block=BLOCK,
    n_values=64,
    group=64,
    q_range=(-1, 2),
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)
        q = ((blocks["qs"][..., None] >> shifts) & np.uint8(3)).astype(np.int8) - np.int8(1)
        return blocks["d"].astype(np.float32)[:, None] * q.reshape(-1, 64).astype(np.float32)
