"""Q8_K: 256 numbers as signed bytes, one single-precision scale, sums of each 16.

For activations, not for files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f4"), ("qs", "i1", 256), ("bsums", "<i2", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """The bytes are the numbers; the sums are not part of the values."""
    mem.copy(q, block + 4, 256)
    mem.put_f32(s, 0, mem.f32(block, 0))
    mem.put_f32(m, 0, np.float32(0))


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

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks["d"][:, None] * blocks["qs"].astype(np.float32)
