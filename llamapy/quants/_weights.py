"""What the IQ encoders do first: how much each value of a block matters; and rounding.

Sums are float32, one value after the other: another order would give other bytes than ggml.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import inner, lanes, mem


@inner
def square_sum(src, n):
    total = np.float32(0)
    for i in range(n):
        total += mem.f32(src, i) * mem.f32(src, i)
    return total


@inner
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


@inner
def largest(x, n):
    """The value with the largest size, the first of equals; 0 if all are 0 or none is a number."""
    size, value = np.float32(0), np.float32(0)
    for i in range(n):
        if abs(mem.f32(x, i)) > size:
            size, value = abs(mem.f32(x, i)), mem.f32(x, i)
    return value


@inner
def nearest_int(value):
    """Round half to even, by a number so large that the fraction is lost (ggml's nearest_int)."""
    bits = mem.bits_of_f32(value + np.float32(12582912.0))
    return np.int32(bits & np.uint32(0x007FFFFF)) - np.int32(0x00400000)


@inner
def small_scale(scale, most):
    """The whole number l from 0 to `most` whose 2 l + 1 is nearest to `scale`."""
    return min(max(nearest_int(np.float32(0.5) * (scale - np.float32(1))), 0), most)


@inner
def take_signs(src, w, even, x):
    """Write the sizes of 8 values to `x`; return a byte whose bits say which are negative.

    If `even` and the number of bits is odd, the value that matters least changes sides: its size is
    then written as negative.
    """
    values, zero = lanes.load(src, 0), lanes.splat(np.float32(0))
    lanes.store(x, 0, lanes.select(values >= zero, values, zero - values))
    signs = lanes.mask_bits(values >= zero) ^ 255
    odd = signs ^ signs >> 4
    odd ^= odd >> 2
    if even and (odd ^ odd >> 1) & 1:
        matter = lanes.bits(lanes.load(w, 0) * values * values)
        least = lanes.first_lane(matter == lanes.splat_i(np.int32(lanes.least(matter))))
        mem.put_f32(x, least, -mem.f32(x, least))
        signs ^= 1 << least
    return signs


@inner
def prepare(src, importance, n, sigma2, floor, even, x, w, root_w):
    """Write sizes, weights and their square roots of n values; return sign bytes and largest size."""
    weigh(src, importance, n, sigma2, floor, w)
    signs, most = np.int64(0), lanes.splat_i(np.int32(-0x80000000))
    for i in range(0, n, 8):
        lanes.store(root_w, i, lanes.root(lanes.load(w, i)))
        signs |= np.int64(take_signs(src + 4 * i, w + 4 * i, even, x + 4 * i)) << i
        most = lanes.maximum(most, lanes.bits(lanes.load(x, i)))
    return signs, mem.f32_of_bits(np.uint32(lanes.greatest(most)))
