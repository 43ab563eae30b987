"""concat: join two tensors along one dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Concat(Op, name="concat"):
    """a, b of one type, equal in all dimensions but `dim` (0 is the innermost) -> joined along it,
    a first."""

    dim: int = 0

    def shape(self, a: Tensor, b: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        same = all(a.ne[i] == b.ne[i] for i in range(4) if i != self.dim)
        self.require(same and a.kind is b.kind and 0 <= self.dim < 4, "cannot be joined", a, b)
        return tuple(n + b.ne[i] if i == self.dim else n for i, n in enumerate(a.ne)), a.kind.name

    def meaning(self, a: Array, b: Array) -> Array:  # type: ignore[override]
        return np.concatenate([a, b], axis=3 - self.dim)
