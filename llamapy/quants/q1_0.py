"""Q1_0: 128 weights as signs, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Bit i of byte j is set if value 8 j + i is positive."""
    for j in range(16):
        byte = mem.u8(block + 2, j)
        for i in range(8):
            mem.put_i8(q, 8 * j + i, (((byte >> i) & 1) << 1) - 1)
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The mean size is the scale; importances change nothing."""
    zero = lanes.splat(0)
    for i in range(n_rows * n_per_row // 128):
        x, block, total = src + 512 * i, dst + 18 * i, np.float32(0)
        for j in range(128):
            total += abs(mem.f32(x, j))
        mem.put_f16(block, 0, total / np.float32(128))
        for j in range(16):
            mem.put_u8(block + 2, j, lanes.mask_bits(lanes.load(x, 8 * j) >= zero))


class Q1_0(
    Codec,
    name="q1_0",
    type_id=41,
    block=BLOCK,
    n_values=128,
    group=128,
    q_range=(-1, 1),
    dot_with="q8_0",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        bits = np.unpackbits(blocks["qs"], axis=-1, bitorder="little").astype(bool)
        d = blocks["d"].astype(np.float32)[:, None]
        return np.where(bits, d, -d)
