"""Q8_0: 32 weights as signed bytes, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem, simd
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import away

BLOCK = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


@compiled
def numbers(block, tables):
    """The bytes are the numbers."""
    return simd.load_u8x32(block + 2)


@compiled
def unpack(block, q, s, m, tables):
    simd.store_u8x32(q, numbers(block, tables))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size becomes 127; importances change nothing."""
    for i in range(n_rows * n_per_row // 32):
        put_block(src + 128 * i, dst + 34 * i, dst + 34 * i + 2)


@compiled
def put_block(x, scale, qs):
    """32 weights to a half at `scale` and 32 bytes at `qs`; the scale as float32 is returned."""
    d = _legacy.size(x, 32) / np.float32(127)
    inverse = lanes.splat(np.float32(1) / d if d != 0 else np.float32(0))
    mem.put_f16(scale, 0, d)
    for j in range(0, 32, 8):
        lanes.store_bytes(qs, j, away(lanes.load(x, j) * inverse))
    return d


class Q8_0(
    Codec,
    name="q8_0",
    type_id=8,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-128, 127),
    dot_with="q8_0",
    halves=1,
):
    unpack = unpack
    numbers = numbers
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks["d"].astype(np.float32)[:, None] * blocks["qs"].astype(np.float32)
