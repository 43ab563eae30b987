"""Q5_K: Q4_K with a fifth bit for each weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.q4_k import group_scales, nibbles, put_scales

BLOCK = np.dtype(
    [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
)


@compiled
def unpack(block, q, s, m, tables):
    """Low halves as in Q4_K; bit g of `qh` byte l is the fifth bit of value l of group g."""
    for run in range(4):
        for l in range(32):
            byte = mem.u8(block + 48 + 32 * run, l)
            high = mem.u8(block + 16, l) >> (2 * run)
            mem.put_i8(q + 64 * run, l, (byte & 15) | ((high & 1) << 4))
            mem.put_i8(q + 64 * run + 32, l, (byte >> 4) | ((high & 2) << 3))
    put_scales(block, s, m)


class Q5_K(
    Codec,
    name="q5_K",
    type_id=13,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(0, 31),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale, minimum = group_scales(blocks)
        bits = np.arange(8, dtype=np.uint8)[:, None]
        high = ((blocks["qh"][:, None, :] >> bits) & np.uint8(1)) << np.uint8(4)
        q = (nibbles(blocks["qs"]) | high).astype(np.float32)
        return (scale * q - minimum).reshape(-1, 256)
