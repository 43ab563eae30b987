"""F16: half-precision numbers (IEEE binary16)."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.quants.codec import Codec


class F16(Codec, name="f16", type_id=1, block="<f2"):
    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return blocks.astype(np.float32)[:, None]
