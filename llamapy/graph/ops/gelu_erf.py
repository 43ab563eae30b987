"""gelu_erf: the Gaussian error linear unit, exact."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import activations
from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class GeluErf(Op, name="gelu_erf", inplace=True):
    """x -> float32 of the same shape."""

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        return activations.gelu_erf(x).astype(np.float32)
