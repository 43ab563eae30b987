"""I16: plain 16-bit integers; nothing is quantized to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class I16(Codec, name="i16", type_id=25, block="<i2"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
