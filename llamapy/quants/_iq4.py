"""The sixteen numbers of IQ4_NL and IQ4_XS, and the search for the scale of a group of 32 weights.

ggml tries sixteen scales for a group, one after the other; here they are tried side by side.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._groups import largest

# llama.cpp's kvalues_iq4nl: denser around zero, where most weights are.
NUMBERS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
VALUES = np.array(NUMBERS, np.int8)

# The same as float32, then the middles: from middle k on number k + 1 is nearest, of two equally
# near the greater.
LADDER = np.array([*NUMBERS, *((a + b) / 2 for a, b in zip(NUMBERS, NUMBERS[1:]))], np.float32)

TOO_SMALL = np.float32(1e-15)  # a group of smaller values becomes zero


@compiled
def number_of(value, ladder):
    """The numbers nearest to 8 values; the last for what is no number."""
    number = lanes.splat(mem.f32(ladder, 0))
    for k in range(15):
        below = value < lanes.splat(mem.f32(ladder, 16 + k))
        number = lanes.select(below, number, lanes.splat(mem.f32(ladder, k + 1)))
    return number


@compiled
def code_of(value, ladder):
    """The indices of the numbers nearest to 8 values."""
    code = lanes.splat(np.float32(0))
    for k in range(15):
        below = value < lanes.splat(mem.f32(ladder, 16 + k))
        code = lanes.select(below, code, lanes.splat(np.float32(k + 1)))
    return lanes.truncate(code)


@compiled
def weighted_sums(x, w, inverse, ladder, sum_qx, sum_qq):
    """For each of 16 inverse scales: the weighted sums of q * x and q * q over 32 values."""
    scale_a, scale_b = lanes.load(inverse, 0), lanes.load(inverse, 8)
    qx_a = qq_a = qx_b = qq_b = lanes.splat(np.float32(0))
    for i in range(32):
        value, weight = lanes.splat(mem.f32(x, i)), lanes.splat(mem.f32(w, i))
        q = number_of(scale_a * value, ladder)
        qx_a = qx_a + weight * q * value
        qq_a = qq_a + weight * q * q
        q = number_of(scale_b * value, ladder)
        qx_b = qx_b + weight * q * value
        qq_b = qq_b + weight * q * q
    lanes.store(sum_qx, 0, qx_a)
    lanes.store(sum_qq, 0, qq_a)
    lanes.store(sum_qx, 8, qx_b)
    lanes.store(sum_qq, 8, qq_b)


@compiled
def trials(most, inverse):
    """Write 16 inverse scales: that by which `most` becomes -127, and 15 around it."""
    mem.put_f32(inverse, 0, np.float32(1) / (-most / np.float32(-127)))
    for t in range(1, 16):
        mem.put_f32(inverse, t, np.float32(t - 8 - 127) / most)


@compiled
def group_scale(x, w, ladder):
    """The scale of the 32 values at `x` that fits best by the weights at `w`."""
    inverse, sum_qx, sum_qq = mem.local(64), mem.local(64), mem.local(64)
    most = largest(x, 32)
    if abs(most) < TOO_SMALL:
        return np.float32(0)
    trials(most, inverse)
    weighted_sums(x, w, inverse, ladder, sum_qx, sum_qq)
    qx, qq = mem.f32(sum_qx, 0), mem.f32(sum_qq, 0)
    scale = qx / qq if qq > 0 else np.float32(0)
    best = scale * qx
    for t in range(1, 16):
        qx, qq = mem.f32(sum_qx, t), mem.f32(sum_qq, t)
        if qq > 0 and qx * qx > best * qq:
            scale = qx / qq
            best = scale * qx
    return scale


@compiled
def pack(x, inverse, ladder, codes):
    """Write the codes of 32 values to 16 bytes: value j low, value j + 16 high."""
    scale, four = lanes.splat(inverse), lanes.splat_i(np.int32(4))
    for j in range(0, 16, 8):
        low = code_of(scale * lanes.load(x, j), ladder)
        high = code_of(scale * lanes.load(x, j + 16), ladder)
        lanes.store_bytes(codes, j, low | high << four)
