"""hadamard: pieces of rows times the normalised Hadamard matrix, which spreads outliers.

llama.cpp multiplies with the matrix (`set_input_k_rot` in llama-kv-cache.cpp fills it), n^2
products; by halves n log n additions do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor

LEAST = 16


@dataclass(frozen=True)
class Hadamard(Op, name="hadamard", inplace=True):
    """x float32 -> the same shape: each `size` values of a row times the symmetric matrix of size x
    size that is its own inverse: element (i, j) is (-1)^(bits that i and j share) / sqrt(size)."""

    size: int = LEAST

    def shape(self, x: Tensor) -> tuple[tuple[int, ...], str]:  # type: ignore[override]
        fits = self.size >= LEAST and self.size & (self.size - 1) == 0
        self.require(fits, f"pieces of {self.size} values: a power of two, {LEAST} or more")
        fits = x.kind.name == "f32" and x.ne[0] % self.size == 0
        self.require(fits, f"no rows of float32 in pieces of {self.size}", x)
        return x.ne, "f32"

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        n = np.arange(self.size)
        shared = np.bitwise_and.outer(n, n)
        signs = np.ones(shared.shape)
        while shared.any():
            signs, shared = np.where(shared & 1, -signs, signs), shared >> 1
        pieces = x.reshape(*x.shape[:-1], -1, self.size).astype(np.float64)
        turned: Array = pieces @ (signs / np.sqrt(self.size))
        return turned.reshape(x.shape).astype(np.float32)
