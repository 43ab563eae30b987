"""F16: half-precision numbers (IEEE binary16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import to_half


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """Round each number to the nearest, halves to even."""
    n = n_rows * n_per_row
    for i in range(0, n - n % 8, 8):
        lanes.store_shorts(dst, i, to_half(lanes.load(src, i)))
    for i in range(n - n % 8, n):
        bits = to_half(lanes.splat(mem.f32(src, i)))
        mem.put_u16(dst, i, mem.bits_of_f32(lanes.lane(lanes.of_bits(bits), 0)))


class F16(Codec, name="f16", type_id=1, block="<f2"):
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
