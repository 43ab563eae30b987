"""rms_norm: divide each row by its root mean square."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class RmsNorm(Op, name="rms_norm", inplace=True):
    """x [n, ...] -> float32 of the same shape: x / sqrt(mean(x^2) + eps) along ne[0]."""

    eps: float = 1e-5

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + self.eps), np.float32)
