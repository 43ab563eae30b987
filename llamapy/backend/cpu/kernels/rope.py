"""rope: rotary positions. The cosines and sines of a token are computed once and turn all its
heads."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.graph.ops.rope import Rope
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem

OPS = ("rope",)


@compiled
def turns(node, position, factors, table):
    """cos and sin of each pair, interleaved float32 at `table`, times the magnitude (formulas: the
    op's file)."""
    n, base, scale = rec.param(node, 0), rec.dparam(node, 2), rec.dparam(node, 3)
    ext, low, high = rec.dparam(node, 4), rec.dparam(node, 6), rec.dparam(node, 7)
    magnitude = rec.dparam(node, 5)
    step = base ** (-2.0 / n)
    frequency = 1.0
    for i in range(n // 2):
        angle = position * frequency
        frequency *= step
        if factors != 0:
            angle /= mem.f32(factors, i)
        share = 0.0
        if ext != 0.0:
            share = (1.0 - min(max((i - low) / max(0.001, high - low), 0.0), 1.0)) * ext
        angle *= scale * (1.0 - share) + share
        mem.put_f32(table, 2 * i, np.float32(np.cos(angle) * magnitude))
        mem.put_f32(table, 2 * i + 1, np.float32(np.sin(angle) * magnitude))


@kernel
def rope(node, ith, nth, sync, a, b):
    """Parameters: n_dims, 1 for halves ("neox"), base, scale, ext, magnitude, low, high."""
    n, halves, head = rec.param(node, 0), rec.param(node, 1), rec.ne(node, 1, 0)
    table, factors = rec.private(node, ith), rec.data(node, 3)
    n_head, n_tokens = rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    apart, gap = (n // 2, 1) if halves == 1 else (1, 2)
    for token in range(ith, n_tokens * rec.ne(node, 1, 3), nth):
        i2, i3 = token % n_tokens, token // n_tokens
        turns(node, np.float64(mem.i32(rec.data(node, 2), i2)), factors, table)
        for h in range(n_head):
            x = (
                rec.data(node, 1)
                + h * rec.nb(node, 1, 1)
                + i2 * rec.nb(node, 1, 2)
                + i3 * rec.nb(node, 1, 3)
            )
            y = (
                rec.data(node, 0)
                + h * rec.nb(node, 0, 1)
                + i2 * rec.nb(node, 0, 2)
                + i3 * rec.nb(node, 0, 3)
            )
            for i in range(n // 2):
                cos, sin = mem.f32(table, 2 * i), mem.f32(table, 2 * i + 1)
                first, second = mem.f32(x, gap * i), mem.f32(x, gap * i + apart)
                mem.put_f32(y, gap * i, first * cos - second * sin)
                mem.put_f32(y, gap * i + apart, first * sin + second * cos)
            if x != y:
                for i in range(n, head):
                    mem.put_f32(y, i, mem.f32(x, i))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    op = node.op
    if not isinstance(op, Rope) or node.src[0].kind.name != "f32" or node.src[0].nb[0] != 4:
        return None
    low, high, magnitude = 0.0, 0.0, op.attn_factor
    if op.ext_factor:
        low, high = op.correction_dims()
        magnitude *= 1.0 + 0.1 * float(np.log(1.0 / op.freq_scale))
    x, pos, factors = op.spread(node.src)
    angles = (op.freq_base, op.freq_scale, op.ext_factor, magnitude, low, high)
    params = (op.n_dims, int(op.mode == "neox"), *map(float, angles))
    return [Step(rope, (node, x, pos, factors), params, private=4 * op.n_dims)]
