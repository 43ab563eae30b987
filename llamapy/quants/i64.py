"""I64: plain 64-bit integers; nothing is quantized to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class I64(Codec, name="i64", type_id=27, block="<i8"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
