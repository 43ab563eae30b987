"""Gated linear units: act(gate) * up, from two tensors or from the halves of one. The op's name is
the phantom type."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activate
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, mem, simd

_GATE = {
    "swiglu": activate.silu, "geglu": activate.gelu, "geglu_erf": activate.gelu_erf,
    "geglu_quick": activate.gelu_quick, "reglu": activate.relu,
}  # fmt: skip
OPS = tuple(_GATE)

act = ByType("act", lambda op: _GATE[op], 3)


@compiled
def row(op, gate, up, y, n, gate_stride, up_stride, scratch):
    zero = np.float32(0)
    whole = n // 16 * 16 if gate_stride == 4 and up_stride == 4 else 0
    for i in range(0, whole, 16):
        a = act(op, simd.load_f32x16(gate + 4 * i), zero, zero)
        simd.store_f32x16(y + 4 * i, a * simd.load_f32x16(up + 4 * i))
    for first in range(whole, n, 16):
        few = min(n - first, 16)
        for i in range(few):
            mem.put_f32(scratch, i, mem.f32(gate + (first + i) * gate_stride, 0))
        for i in range(few, 16):
            mem.put_f32(scratch, i, zero)
        simd.store_f32x16(scratch, act(op, simd.load_f32x16(scratch), zero, zero))
        for i in range(few):
            mem.put_f32(
                y, first + i, mem.f32(scratch, i) * mem.f32(up + (first + i) * up_stride, 0)
            )


@kernel
def glu(node, ith, nth, sync, a, b):
    """Parameter 0: 0 for two sources; 1: one source, gate first; 2: one source, up first."""
    n, form = rec.ne(node, 0, 0), rec.param(node, 0)
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(first, last):
        gate = rec.row_address(node, 1, r)
        gate_stride = rec.nb(node, 1, 0)
        up, up_stride = gate, gate_stride
        if form == 0:
            up, up_stride = rec.row_address(node, 2, r), rec.nb(node, 2, 0)
        elif form == 1:
            up = gate + n * gate_stride
        else:
            gate = gate + n * gate_stride
        row(
            a,
            gate,
            up,
            rec.row_address(node, 0, r),
            n,
            gate_stride,
            up_stride,
            rec.private(node, ith),
        )


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    if any(s.kind.name != "f32" for s in node.src) or node.op is None:
        return None
    swapped = bool(getattr(node.op, "swapped", False))
    form = 0 if len(node.src) == 2 else 2 if swapped else 1
    return [Step(glu, (node, *node.src), (form,), types=(node.op.name, ""), private=64)]
