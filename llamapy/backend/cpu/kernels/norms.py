"""rms_norm, norm, l2_norm, and the sums they are made of: sum_rows, mean. One thread a row, sums
in float64 or lanes."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("rms_norm", "norm", "l2_norm", "sum_rows", "mean")


@compiled
def total(x, n, stride):
    """Sum of a row."""
    acc, whole = simd.zeros_f32x16(), n // 16 * 16 if stride == 4 else 0
    for i in range(0, whole, 16):
        acc = acc + simd.load_f32x16(x + 4 * i)
    rest = np.float64(simd.total_f32x16(acc))
    for i in range(whole, n):
        rest += mem.f32(x + i * stride, 0)
    return rest


@compiled
def total_of_squares(x, n, stride, shift):
    """Sum of (x - shift)^2."""
    acc, whole = simd.zeros_f32x16(), n // 16 * 16 if stride == 4 else 0
    s = simd.splat_f32x16(np.float32(shift))
    for i in range(0, whole, 16):
        y = simd.load_f32x16(x + 4 * i) - s
        acc = simd.fma_f32x16(y, y, acc)
    rest = np.float64(simd.total_f32x16(acc))
    for i in range(whole, n):
        y = np.float64(mem.f32(x + i * stride, 0)) - shift
        rest += y * y
    return rest


@compiled
def scaled(x, y, n, stride, shift, factor):
    """y = (x - shift) * factor."""
    whole = n // 16 * 16 if stride == 4 else 0
    s, f = simd.splat_f32x16(np.float32(shift)), simd.splat_f32x16(np.float32(factor))
    for i in range(0, whole, 16):
        simd.store_f32x16(y + 4 * i, (simd.load_f32x16(x + 4 * i) - s) * f)
    for i in range(whole, n):
        mem.put_f32(y, i, np.float32((mem.f32(x + i * stride, 0) - shift) * factor))


@kernel
def norms(node, ith, nth, sync, a, b):
    """Parameter 0: the kind, as its place in OPS; 1: eps."""
    kind, eps = rec.param(node, 0), rec.fparam(node, 1)
    n, stride = rec.ne(node, 1, 0), rec.nb(node, 1, 0)
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        if kind == 0:
            mean = total_of_squares(x, n, stride, 0.0) / n
            scaled(x, y, n, stride, 0.0, 1.0 / np.sqrt(mean + eps))
        elif kind == 1:
            mean = total(x, n, stride) / n
            variance = total_of_squares(x, n, stride, mean) / n
            scaled(x, y, n, stride, mean, 1.0 / np.sqrt(variance + eps))
        elif kind == 2:
            length = np.sqrt(total_of_squares(x, n, stride, 0.0))
            scaled(x, y, n, stride, 0.0, 1.0 / max(length, np.float64(eps)))
        elif kind == 3:
            mem.put_f32(y, 0, np.float32(total(x, n, stride)))
        else:
            mem.put_f32(y, 0, np.float32(total(x, n, stride) / n))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    x = node.src[0]
    if x.kind.name != "f32" or node.op is None:
        return None
    return [Step(norms, (node, x), (OPS.index(node.op.name), float(getattr(node.op, "eps", 0.0))))]
