"""Q3_K: 16 groups of 16 weights as 3-bit numbers around 4, with 6-bit signed scales.

One half-precision factor turns the small scales of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.q2_k import two_bits

BLOCK = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])


@compiled
def scale_of(scales, j):
    """Scale j of 16: four bits in bytes 0-7 (8-15 in the high halves), two upper ones in 8-11."""
    low = (mem.u8(scales, j % 8) >> (4 * (j // 8))) & 15
    high = (mem.u8(scales + 8, j % 4) >> (2 * (j // 4))) & 3
    return (low | (high << 4)) - 32


@compiled
def unpack(block, q, s, m, tables):
    """Low bits as in Q2_K; bit k of `hmask` byte l is set if value 32 k + l is not lowered by 4."""
    for half in range(2):
        for l in range(32):
            byte = mem.u8(block + 32 + 32 * half, l)
            mask = mem.u8(block, l) >> (4 * half)
            for k in range(4):
                high = (mask >> k) & 1
                mem.put_i8(q + 128 * half + 32 * k, l, (((byte >> (2 * k)) & 3) | (high << 2)) - 4)
    d = mem.f16(block + 108, 0)
    for j in range(16):
        mem.put_f32(s, j, d * np.float32(scale_of(block + 96, j)))
        mem.put_f32(m, j, np.float32(0))


class Q3_K(
    Codec,
    name="q3_K",
    type_id=11,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-4, 3),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        low, high = blocks["scales"][:, :8], blocks["scales"][:, 8:]
        low = np.concatenate([low & 15, low >> 4], axis=-1)
        high = np.concatenate([(high >> shift) & 3 for shift in (0, 2, 4, 6)], axis=-1)
        scales = (low | high << np.uint8(4)).astype(np.int8) - np.int8(32)
        d = blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32)
        bits = np.arange(8, dtype=np.uint8)[:, None]
        upper = ((blocks["hmask"][:, None, :] >> bits) & np.uint8(1)) << np.uint8(2)
        q = (two_bits(blocks["qs"]) | upper.reshape(-1, 256)).astype(np.int8) - np.int8(4)
        return (d[..., None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)
