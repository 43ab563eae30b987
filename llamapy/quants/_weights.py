"""How much each value of a group matters to the IQ encoders; its sizes and signs; small scales."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants.rounding import nearest_int


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
def take_signs(src, w, even, x):
    """Write the sizes of 8 values to `x`; return a byte whose bits say which are negative.

    If `even` and the number of bits is odd, the value that matters least changes sides: its size is
    then written as negative.
    """
    values, zero = lanes.load(src, 0), lanes.splat(np.float32(0))
    lanes.store(x, 0, lanes.select(values >= zero, values, zero - values))
    signs = np.int64(lanes.mask_bits(values >= zero)) ^ 255
    odd = signs ^ signs >> 4
    odd ^= odd >> 2
    if even and (odd ^ odd >> 1) & 1:
        matter = lanes.bits(lanes.load(w, 0) * values * values)
        least = lanes.first_lane(matter == lanes.splat_i(np.int32(lanes.least(matter))))
        mem.put_f32(x, least, -mem.f32(x, least))
        signs ^= 1 << least
    return signs


@compiled
def prepare(src, importance, n, sigma2, floor, even, x, w, root_w):
    """Write n sizes, weights and square roots of weights; return sign bytes and largest size."""
    weigh(src, importance, n, sigma2, floor, w)
    signs, most = np.int64(0), lanes.splat_i(np.int32(-0x80000000))
    for i in range(0, n, 8):
        lanes.store(root_w, i, lanes.root(lanes.load(w, i)))
        signs |= take_signs(src + 4 * i, w + 4 * i, even, x + 4 * i) << i
        most = lanes.maximum(most, lanes.bits(lanes.load(x, i)))
    return signs, mem.f32_of_bits(np.uint32(lanes.greatest(most)))


@compiled
def widest(scales, n):
    """The greatest of n scales; NaN if one is not a number from 0 on (there ggml aborts)."""
    result = np.float32(0)
    for i in range(n):
        scale = mem.f32(scales, i)
        if not scale >= 0:
            return np.float32(np.nan)
        result = max(result, scale)
    return result


@compiled
def small_scale(scale, most):
    """The whole number l from 0 to `most` whose 2 l + 1 is nearest to `scale`."""
    return min(max(nearest_int(np.float32(0.5) * (scale - np.float32(1))), 0), most)


@compiled
def clear(block, n_bytes):
    for i in range(n_bytes):
        mem.put_u8(block, i, 0)
