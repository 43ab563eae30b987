"""Q6_K: 16 groups of 16 weights as 6-bit numbers around 32, with 8-bit signed scales.

One half-precision factor turns the small scales of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])


@compiled
def unpack(block, q, s, m, tables):
    """In each half of 128 values, value 32 k + l has its low bits in half k // 2 of `ql` byte
    32 (k % 2) + l and its two top bits at bit 2 k of `qh` byte l."""
    for half in range(2):
        low, high, out = block + 64 * half, block + 128 + 32 * half, q + 128 * half
        for l in range(32):
            first, second, top = mem.u8(low, l), mem.u8(low, l + 32), mem.u8(high, l)
            mem.put_i8(out, l, ((first & 15) | ((top & 3) << 4)) - 32)
            mem.put_i8(out, l + 32, ((second & 15) | ((top & 12) << 2)) - 32)
            mem.put_i8(out, l + 64, ((first >> 4) | (top & 48)) - 32)
            mem.put_i8(out, l + 96, ((second >> 4) | ((top >> 6) << 4)) - 32)
    d = mem.f16(block + 208, 0)
    for j in range(16):
        mem.put_f32(s, j, d * np.float32(mem.i8(block + 192, j)))
        mem.put_f32(m, j, np.float32(0))


class Q6_K(
    Codec,
    name="q6_K",
    type_id=14,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(-32, 31),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        ql = blocks["ql"].reshape(-1, 2, 64)
        low = np.concatenate([ql & 15, ql >> 4], axis=-1).reshape(-1, 256)
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        high = (blocks["qh"].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
        q = (low | high.reshape(-1, 256) << np.uint8(4)).astype(np.int8) - np.int8(32)
        d = blocks["d"].astype(np.float32)[:, None] * blocks["scales"].astype(np.float32)
        return (d[..., None] * q.reshape(-1, 16, 16).astype(np.float32)).reshape(-1, 256)
