"""Q2_K: 16 groups of 16 weights as 2-bit numbers, with 4-bit scales and minimums.

Two half-precision factors turn the small scales and minimums of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of half h holds the values l, l + 32, l + 64, l + 96 of its 128, lowest bits first."""
    for half in range(2):
        for l in range(32):
            byte = mem.u8(block + 16 + 32 * half, l)
            for k in range(4):
                mem.put_i8(q + 128 * half + 32 * k, l, (byte >> (2 * k)) & 3)
    d, dmin = mem.f16(block + 80, 0), mem.f16(block + 80, 1)
    for j in range(16):
        scale = mem.u8(block, j)
        mem.put_f32(s, j, d * np.float32(scale & 15))
        mem.put_f32(m, j, dmin * np.float32(scale >> 4))


class Q2_K(
    Codec,
    name="q2_K",
    type_id=10,
    block=BLOCK,
    n_values=256,
    group=16,
    q_range=(0, 3),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
        scale = d * (blocks["scales"] & 15).astype(np.float32)
        minimum = dmin * (blocks["scales"] >> 4).astype(np.float32)
        q = two_bits(blocks["qs"]).reshape(-1, 16, 16).astype(np.float32)
        return (scale[..., None] * q - minimum[..., None]).reshape(-1, 256)


def two_bits(qs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 [n, 64] -> [n, 256]: 32 bytes hold 4 runs of 32 values, lowest bits first."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return ((qs.reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)).reshape(-1, 256)
