"""Q4_K: 8 groups of 32 weights as 4-bit numbers, with 6-bit scales and minimums.

Two half-precision factors turn the small scales and minimums of a block into real ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])


@compiled
def scale_and_min(scales, j):
    """Scale and minimum j of 8: low six bits of bytes j and j + 4, whose top bits belong to 4-7."""
    if j < 4:
        return mem.u8(scales, j) & 63, mem.u8(scales, j + 4) & 63
    low = mem.u8(scales, j + 4)
    scale = (low & 15) | ((mem.u8(scales, j - 4) >> 6) << 4)
    return scale, (low >> 4) | ((mem.u8(scales, j) >> 6) << 4)


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of run r of 32 holds value l of group 2 r (low half) and of group 2 r + 1 (high)."""
    for run in range(4):
        for l in range(32):
            byte = mem.u8(block + 16 + 32 * run, l)
            mem.put_i8(q + 64 * run, l, byte & 15)
            mem.put_i8(q + 64 * run + 32, l, byte >> 4)
    put_scales(block, s, m)


@compiled
def put_scales(block, s, m):
    """Write the scales and minimums of the 8 groups of a Q4_K or Q5_K block."""
    d, dmin = mem.f16(block, 0), mem.f16(block, 1)
    for j in range(8):
        scale, minimum = scale_and_min(block + 4, j)
        mem.put_f32(s, j, d * np.float32(scale))
        mem.put_f32(m, j, dmin * np.float32(minimum))


def group_scales(blocks: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Scales and minimums of the groups of Q4_K or Q5_K blocks: two float32 [n, 8, 1]."""
    first, second, last = (blocks["scales"][:, i : i + 4] for i in (0, 4, 8))
    scale = np.concatenate([first & 63, (last & 15) | (first >> 6 << 4)], axis=-1)
    minimum = np.concatenate([second & 63, (last >> 4) | (second >> 6 << 4)], axis=-1)
    d, dmin = (blocks[name].astype(np.float32)[:, None] for name in ("d", "dmin"))
    return (d * scale.astype(np.float32))[..., None], (dmin * minimum.astype(np.float32))[..., None]


def nibbles(qs: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """uint8 [n, 128] -> [n, 8, 32]: 32 bytes hold two groups, the first in the low halves."""
    runs = qs.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(-1, 8, 32)


class Q4_K(
    Codec,
    name="q4_K",
    type_id=12,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(0, 15),
    has_min=True,
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        scale, minimum = group_scales(blocks)
        q = nibbles(blocks["qs"]).astype(np.float32)
        return (scale * q - minimum).reshape(-1, 256)
