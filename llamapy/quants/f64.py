"""F64: double-precision numbers; nothing is quantized to them."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class F64(Codec, name="f64", type_id=28, block="<f8"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
