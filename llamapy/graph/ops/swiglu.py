"""swiglu: silu(gate) * up."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph import activations, glu
from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Swiglu(Op, name="swiglu", inplace=(0, 1)):
    """gate, up [n, ...] -> [n, ...]; or one tensor [2n, ...] whose rows hold gate, then up
    (`swapped`: up first)."""

    swapped: bool = False

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        return glu.shape(self, src)

    def meaning(self, *arrays: Array) -> Array:
        return glu.meaning(activations.silu, arrays, self.swapped)
