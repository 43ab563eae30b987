"""BF16: the upper half of a single-precision number."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class BF16(Codec, name="bf16", type_id=30, block="<u2"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return (blocks.astype(np.uint32) << 16).view(np.float32)[:, None]
