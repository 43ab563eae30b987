"""I32: plain 32-bit integers; nothing is quantized to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class I32(Codec, name="i32", type_id=26, block="<i4"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
