"""What the IQ encoders do first: how much each value of a block matters; and rounding.

Sums are float32, one value after the other: another order would give other bytes than ggml.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem


@compiled
def square_sum(src, n):
    total = np.float32(0)
    for i in range(n):
        total += mem.f32(src, i) * mem.f32(src, i)
    return total


@compiled
def weigh(src, importance, n, sigma2, floor, w):
    """Write the weights of n values (a multiple of 8) to `w`.

    importance * sqrt(sigma2 + x ** 2), or floor + x ** 2 where `importance` is 0.
    """
    for i in range(0, n, 8):
        x = lanes.load(src, i)
        if importance:
            root = lanes.root(lanes.splat(sigma2) + x * x)
            lanes.store(w, i, lanes.load(importance, i) * root)
        else:
            lanes.store(w, i, lanes.splat(floor) + x * x)


@compiled
def largest(x, n):
    """The value with the largest size, the first of equals; 0 if all are 0 or none is a number."""
    size, value = np.float32(0), np.float32(0)
    for i in range(n):
        if abs(mem.f32(x, i)) > size:
            size, value = abs(mem.f32(x, i)), mem.f32(x, i)
    return value


@compiled
def nearest_int(value):
    """Round half to even, by a number so large that the fraction is lost (ggml's nearest_int)."""
    bits = mem.bits_of_f32(value + np.float32(12582912.0))
    return np.int32(bits & np.uint32(0x007FFFFF)) - np.int32(0x00400000)
