"""TQ2_0: 256 weights as -1, 0 or 1, four to a byte, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.q2_k import two_bits

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of half h holds the values l, l + 32, l + 64, l + 96 of its 128, lowest bits first."""
    for half in range(2):
        for l in range(32):
            byte = mem.u8(block + 32 * half, l)
            for k in range(4):
                mem.put_i8(q + 128 * half + 32 * k, l, ((byte >> (2 * k)) & 3) - 1)
    mem.put_f32(s, 0, mem.f16(block + 64, 0))
    mem.put_f32(m, 0, np.float32(0))


class TQ2_0(
    Codec,
    name="tq2_0",
    type_id=35,
    block=BLOCK,
    n_values=256,
    group=256,
    q_range=(-1, 2),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        q = two_bits(blocks["qs"]).astype(np.int8) - np.int8(1)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
