"""Q2_0: 64 weights as -1, 0, 1 or 2, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import away

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


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size is the scale, so that 2 is never used; importances change nothing."""
    levels = mem.local(64)
    for i in range(n_rows * n_per_row // 64):
        x, block = src + 256 * i, dst + 18 * i
        d = _legacy.size(x, 64)
        inverse = lanes.splat(np.float32(1) / d if d != 0 else np.float32(0))
        mem.put_f16(block, 0, d)
        for j in range(0, 64, 8):
            whole = away(lanes.load(x, j) * inverse) + lanes.splat_i(1)
            whole = lanes.maximum(whole, lanes.splat_i(0))
            lanes.store_bytes(levels, j, lanes.minimum(whole, lanes.splat_i(3)))
        for j in range(0, 16, 8):
            four = lanes.load_i(levels, j)  # four levels in each lane, a byte each
            for step in (6, 12):
                four = four | (four >> lanes.splat_i(step))
            lanes.store_bytes(block + 2, j, four)


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
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        shifts = np.arange(0, 8, 2, dtype=np.uint8)
        q = ((blocks["qs"][..., None] >> shifts) & np.uint8(3)).astype(np.int8) - np.int8(1)
        return blocks["d"].astype(np.float32)[:, None] * q.reshape(-1, 64).astype(np.float32)
