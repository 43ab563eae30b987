"""rope: rotary positions. The cosines and sines of a token are computed once and turn all its
heads."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.ops.rope import Rope
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem

OPS = ("rope",)

HALF_PI = float(np.float32(np.pi / 2))  # 24 bits: times a whole number below 2^29 it is exact
HALF_PI_REST = np.pi / 2 - HALF_PI
S3, S5, S7, S9, S11 = -1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800
C2, C4, C6, C8, C10, C12 = -1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800, 1 / 479001600


@compiled
def frequencies(node, factors, table):
    """Radians that each pair turns by from one position to the next, n / 2 float64 at `table`
    (formulas: the op's file)."""
    n, base, scale = rec.param(node, 0), rec.dparam(node, 2), rec.dparam(node, 3)
    ext, low, high = rec.dparam(node, 4), rec.dparam(node, 6), rec.dparam(node, 7)
    step, power = base ** (-2.0 / n), 1.0
    for i in range(n // 2):
        frequency = power
        power *= step
        if factors != 0:
            frequency /= mem.f32(factors, i)
        share = 0.0
        if ext != 0.0:
            share = (1.0 - min(max((i - low) / max(0.001, high - low), 0.0), 1.0)) * ext
        mem.put_f64(table, i, frequency * (scale * (1.0 - share) + share))


@compiled
def turns(position, frequencies, n_pairs, magnitude, cosines, sines):
    """cos and sin of each pair's angle times the magnitude, float32.

    Without branches, so that the compiler makes vectors of it: the angle less its quarter turns
    (half of pi as a sum of two numbers, the first short enough to be multiplied exactly), then the
    Taylor series, whose error is below 1e-9 up to an eighth of a turn.
    """
    for i in range(n_pairs):
        angle = position * mem.f64(frequencies, i)
        quarters = np.floor(angle * (2 / np.pi) + 0.5)
        x = angle - quarters * HALF_PI - quarters * HALF_PI_REST
        z = x * x
        sin = x * (1 + z * (S3 + z * (S5 + z * (S7 + z * (S9 + z * S11)))))
        cos = 1 + z * (C2 + z * (C4 + z * (C6 + z * (C8 + z * (C10 + z * C12)))))
        half = np.floor(quarters * 0.5)
        odd = quarters - 2 * half  # 1 where sine and cosine change places
        sign = 1 - 2 * (half - 2 * np.floor(half * 0.5))
        turned_cos = (cos - odd * (cos + sin)) * sign * magnitude
        turned_sin = (sin + odd * (cos - sin)) * sign * magnitude
        mem.put_f32(cosines, i, np.float32(turned_cos))
        mem.put_f32(sines, i, np.float32(turned_sin))


@kernel
def rope(node, ith, nth, sync, a, b):
    """Parameters: n_dims, 1 for halves ("neox"), base, scale, ext, magnitude, low, high."""
    n, halves, head = rec.param(node, 0), rec.param(node, 1), rec.ne(node, 1, 0)
    table, magnitude = rec.private(node, ith), rec.dparam(node, 5)
    cosines, sines = table + 4 * n, table + 6 * n
    frequencies(node, rec.data(node, 3), table)
    n_head, n_tokens = rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    apart, gap = (n // 2, 1) if halves == 1 else (1, 2)
    start, end = block_of(n_tokens * rec.ne(node, 1, 3), ith, nth)
    for token in range(start, end):
        i2, i3 = token % n_tokens, token // n_tokens
        position = np.float64(mem.i32(rec.data(node, 2), i2))
        turns(position, table, n // 2, magnitude, cosines, sines)
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
                cos, sin = mem.f32(cosines, i), mem.f32(sines, i)
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
    return [Step(rope, (node, x, pos, factors), params, private=8 * op.n_dims)]
