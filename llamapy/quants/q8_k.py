"""Q8_K: 256 numbers as signed bytes, one single-precision scale, sums of each 16.

For activations, not for files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """The bytes are the numbers; the sums are not part of the values."""
    mem.copy(q, block + 4, 256)
    mem.put_f32(s, 0, mem.f32(block, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The number with the largest size becomes -127."""
    for i in range(n_rows * n_per_row // 256):
        x, block = src + 1024 * i, dst + 292 * i
        most = _legacy.peak(x, 256)
        inverse = np.float32(-127) / most if most != 0 else np.float32(0)
        mem.put_f32(block, 0, np.float32(1) / inverse if most != 0 else np.float32(0))
        for j in range(0, 256, 8):
            whole = lanes.nearest(lanes.load(x, j) * lanes.splat(inverse))
            whole = lanes.minimum(whole, lanes.splat_i(127))
            lanes.store_bytes(block + 4, j, whole)
        for group in range(16):
            total = 0
            for j in range(16):
                total += mem.i8(block + 4 + 16 * group, j)
            mem.put_i16(block + 260, group, total if most != 0 else 0)


class Q8_K(
    Codec,
    name="q8_K",
    type_id=15,
    block=BLOCK,
    n_values=256,
    group=256,
    q_range=(-128, 127),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks["d"][:, None] * blocks["qs"].astype(np.float32)
