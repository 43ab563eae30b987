"""sub: a - b."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import repeats
from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Sub(Op, name="sub", inplace=(0, 1)):
    """a and b, whose sizes divide a's (it is repeated to a's shape) -> float32 like a."""

    def shape(self, a: Tensor, b: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        self.require(repeats.fits(b, a.ne), "the second does not repeat to the first", a, b)
        return a.ne, "f32"

    def meaning(self, a: Array, b: Array) -> Array:  # type: ignore[override]
        return np.subtract(a, repeats.repeat(b, a.shape))
