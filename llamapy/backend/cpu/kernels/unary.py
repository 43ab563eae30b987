"""Element by element: activations, scale, clamp and the like. The op's name is the phantom type."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activate
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, mem, simd

FUNCTIONS = {
    f.__name__: f
    for f in (
        activate.sigmoid,
        activate.silu,
        activate.gelu,
        activate.gelu_quick,
        activate.gelu_erf,
        activate.relu,
        activate.relu_sqr,
        activate.tanh,
        activate.neg,
        activate.exp,
        activate.sqr,
        activate.sqrt,
        activate.scale,
        activate.clamp,
    )  # fmt: skip
}
OPS = tuple(FUNCTIONS)

apply = ByType("apply", lambda op: FUNCTIONS[op], 3)


@compiled
def row(op, x, y, n, stride, p, q, scratch):
    """y[i] = f(x[i]) for a row whose elements are `stride` bytes apart; the tail goes through
    scratch."""
    whole = n // 16 * 16 if stride == 4 else 0
    for i in range(0, whole, 16):
        simd.store_f32x16(y + 4 * i, apply(op, simd.load_f32x16(x + 4 * i), p, q))
    for first in range(whole, n, 16):
        few = min(n - first, 16)
        for i in range(few):
            mem.put_f32(scratch, i, mem.f32(x + (first + i) * stride, 0))
        for i in range(few, 16):
            mem.put_f32(scratch, i, np.float32(1))
        simd.store_f32x16(scratch, apply(op, simd.load_f32x16(scratch), p, q))
        for i in range(few):
            mem.put_f32(y, first + i, mem.f32(scratch, i))


@kernel
def unary(node, ith, nth, sync, a, b):
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    p, q = rec.fparam(node, 0), rec.fparam(node, 1)
    for r in range(first, last):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        row(a, x, y, rec.ne(node, 0, 0), rec.nb(node, 1, 0), p, q, rec.private(node, ith))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    x = node.src[0]
    if x.kind.name != "f32" or node.kind.name != "f32" or node.op is None:
        return None
    fields = {"scale": ("s", "b"), "clamp": ("lo", "hi")}.get(node.op.name, ())
    params = [float(getattr(node.op, f)) for f in fields] or [0.0, 0.0]
    return [Step(unary, (node, x), params, types=(node.op.name, ""), private=64)]
