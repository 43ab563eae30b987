"""Q8_1: Q8_0 with the scaled sum of the numbers beside the scale; for activations, not files."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.q8_0 import put_block

BLOCK = np.dtype([("d", "<f2"), ("s", "<f2"), ("qs", "i1", 32)])


@compiled
def unpack(block, q, s, m, tables):
    """The bytes are the numbers; the sum `s` of the block is not part of the values."""
    mem.copy(q, block + 4, 32)
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """As Q8_0; the sum is taken before the scale is rounded to half precision."""
    for i in range(n_rows * n_per_row // 32):
        block, total = dst + 36 * i, 0
        d = put_block(src + 128 * i, block, block + 4)
        for j in range(32):
            total += mem.i8(block + 4, j)
        mem.put_f16(block, 1, np.float32(total) * d)


class Q8_1(
    Codec,
    name="q8_1",
    type_id=9,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-128, 127),
    dot_with="q8_0",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)
