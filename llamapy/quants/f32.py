"""F32: single-precision numbers, as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class F32(Codec, name="f32", type_id=0, block="<f4"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
