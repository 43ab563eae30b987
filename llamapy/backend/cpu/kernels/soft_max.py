"""soft_max: scale, mask with ALiBi slopes, sinks; one thread a row."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.attention import mask_row, slope
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.ops.soft_max import SoftMax
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("soft_max",)


@kernel
def soft_max(node, ith, nth, sync, a, b):
    """Parameters: scale, max_bias. Phantom a: the mask's type."""
    n, n_q, n_head = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    scale, max_bias = rec.fparam(node, 0), rec.fparam(node, 1)
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        i1, rest = r % n_q, r // n_q
        head, i3 = rest % n_head, rest // n_head
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        mask, m = mask_row(node, 2, i1, head, i3), slope(head, n_head, max_bias)
        top = np.float32(-np.inf)
        for i in range(n):
            z = mem.f32(x + i * rec.nb(node, 1, 0), 0) * scale
            if mask != 0:
                z += m * values.load_1(a, mask, i)
            mem.put_f32(y, i, z)
            top = max(top, z)
        sinks = rec.data(node, 3)
        if sinks != 0:
            top = max(top, mem.f32(sinks, head))
        if top == -np.inf:
            for i in range(n):
                mem.put_f32(y, i, np.float32(0))
        else:
            total = exponentials(y, n, top)
            if sinks != 0:
                total += np.exp(np.float64(mem.f32(sinks, head) - top))
            inverse = np.float32(1.0 / total)
            for i in range(n):
                mem.put_f32(y, i, mem.f32(y, i) * inverse)


@compiled
def exponentials(y, n, top):
    """y = exp(y - top) in place; their sum."""
    acc, whole, shift = simd.zeros_f32x16(), n // 16 * 16, simd.splat_f32x16(top)
    for i in range(0, whole, 16):
        e = simd.exp_down_f32x16(simd.load_f32x16(y + 4 * i) - shift)
        simd.store_f32x16(y + 4 * i, e)
        acc = acc + e
    total = np.float64(simd.total_f32x16(acc))
    for i in range(whole, n):
        e = np.exp(mem.f32(y, i) - top)
        mem.put_f32(y, i, np.float32(e))
        total += e
    return total


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    op = node.op
    if not isinstance(op, SoftMax) or node.src[0].kind.name != "f32":
        return None
    x, mask, sinks = op.spread(node.src)
    kind = mask.kind.name if mask is not None else "f32"
    if mask is not None and not mask.contiguous_rows:
        return None
    return [
        Step(soft_max, (node, x, mask, sinks), (float(op.scale), float(op.max_bias)), (kind, ""))
    ]
