"""I8: plain 8-bit integers; nothing is quantized to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class I8(Codec, name="i8", type_id=24, block="i1"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
