"""F32: single-precision numbers, as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The bytes, as they are."""
    mem.copy(dst, src, 4 * n_rows * n_per_row)


class F32(Codec, name="f32", type_id=0, block="<f4"):
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
