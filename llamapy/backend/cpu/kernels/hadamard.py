"""hadamard: sums and differences of halves, of quarters ... of each piece; within a vector by
swapped lanes."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, simd

OPS = ("hadamard",)


@compiled
def halves(y, n):
    """Sums of the two halves of n floats, then their differences, in place; n at least 32."""
    for i in range(0, n // 2, 16):
        low, high = y + 4 * i, y + 4 * i + 2 * n
        a, b = simd.load_f32x16(low), simd.load_f32x16(high)
        simd.store_f32x16(low, a + b)
        simd.store_f32x16(high, a - b)


@kernel
def hadamard(node, ith, nth, sync, a, b):
    """Parameter 0: values a piece. The result may be the source."""
    size = rec.param(node, 0)
    scale = simd.splat_f32x16(np.float32(1 / np.sqrt(size)))
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        for i in range(0, rec.ne(node, 0, 0), 16):
            v = simd.walsh_f32x16(simd.load_f32x16(x + 4 * i))
            simd.store_f32x16(y + 4 * i, v * scale)
        n = 32
        while n <= size:
            for i in range(0, rec.ne(node, 0, 0), n):
                halves(y + 4 * i, n)
            n *= 2


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    x = node.src[0]
    if x.nb[0] != 4:
        return None
    return [Step(hadamard, (node, x), (getattr(node.op, "size", 0),))]
