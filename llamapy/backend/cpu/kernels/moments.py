"""moments: sums of squares and sums of columns; threads share the columns."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("moments",)


@kernel
def moments(node, ith, nth, sync, a, b):
    k, n_mat = rec.ne(node, 0, 0), rec.ne(node, 0, 2)
    first, last = block_of((k + 15) // 16, ith, nth)
    first, last = min(16 * first, k), min(16 * last, k)
    for row in range(2 * n_mat):
        y = rec.data(node, 0) + 4 * k * row
        for i in range(first, last):
            mem.put_f32(y, i, np.float32(0))
    if rec.data(node, 2) == 0:
        for r in range(rec.n_rows(node, 1)):
            add_row(rec.row_address(node, 1, r), rec.data(node, 0), k, first, last)
        return
    n_used, m = rec.ne(node, 2, 0), rec.ne(node, 1, 1)
    for token in range(rec.ne(node, 2, 1)):
        for used in range(n_used):
            at = rec.data(node, 2) + used * rec.nb(node, 2, 0) + token * rec.nb(node, 2, 1)
            mat = np.int64(mem.i32(at, 0))
            if 0 <= mat < n_mat:
                x = rec.data(node, 1) + used % m * rec.nb(node, 1, 1) + token * rec.nb(node, 1, 2)
                add_row(x, rec.data(node, 0) + mat * rec.nb(node, 0, 2), k, first, last)


@compiled
def add_row(x, y, k, first, last):
    """Add the squares of x to the k floats at y, and x itself to the next k; columns first to last
    - 1."""
    whole = first + (last - first) // 16 * 16
    for i in range(first, whole, 16):
        z, s, t = simd.load_f32x16(x + 4 * i), y + 4 * i, y + 4 * (k + i)
        simd.store_f32x16(s, simd.load_f32x16(s) + z * z)
        simd.store_f32x16(t, simd.load_f32x16(t) + z)
    for i in range(whole, last):
        z = mem.f32(x, i)
        mem.put_f32(y, i, mem.f32(y, i) + z * z)
        mem.put_f32(y, k + i, mem.f32(y, k + i) + z)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    if not node.src[0].contiguous_rows:
        return None
    return [Step(moments, (node, *node.src))]
