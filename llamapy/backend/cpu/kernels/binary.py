"""add, sub, mul, div of two tensors, the second repeated to the first. The op's name is phantom a,
its type phantom b."""

from __future__ import annotations

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import ByType, compiled, mem, simd


@compiled
def add(x, y):
    return x + y


@compiled
def sub(x, y):
    return x - y


@compiled
def mul(x, y):
    return x * y


@compiled
def div(x, y):
    return x / y


FUNCTIONS = {"add": add, "sub": sub, "mul": mul, "div": div}
OPS = tuple(FUNCTIONS)

apply = ByType("apply", lambda op: FUNCTIONS[op], 2)


@kernel
def binary(node, ith, nth, sync, a, b):
    n, n_b = rec.ne(node, 0, 0), rec.ne(node, 2, 0)
    x_stride, y_stride, size = rec.nb(node, 1, 0), rec.nb(node, 2, 0), values.n_bytes(b)
    first, last = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(first, last):
        x, y, out = (
            rec.row_address(node, 1, r),
            rec.like_row_address(node, 2, r),
            rec.row_address(node, 0, r),
        )
        whole = 0
        if x_stride == 4 and n_b == n and y_stride == size:
            whole = n // 16 * 16
            for i in range(0, whole, 16):
                z = apply(a, simd.load_f32x16(x + 4 * i), values.load_16(b, y + size * i))
                simd.store_f32x16(out + 4 * i, z)
        elif x_stride == 4 and n_b == 1:
            whole = n // 16 * 16
            other = simd.splat_f32x16(values.load_1(b, y, 0))
            for i in range(0, whole, 16):
                simd.store_f32x16(out + 4 * i, apply(a, simd.load_f32x16(x + 4 * i), other))
        for i in range(whole, n):
            z = apply(a, mem.f32(x + i * x_stride, 0), values.load_1(b, y + i % n_b * y_stride, 0))
            mem.put_f32(out, i, z)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    x, y = node.src
    if x.kind.name != "f32" or y.kind.name not in values.PLAIN or node.op is None:
        return None
    return [Step(binary, (node, x, y), types=(node.op.name, y.kind.name))]
