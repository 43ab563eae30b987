"""The roundings of ggml, each named as there: which one a type uses decides its bytes.

nearest_int halves to even (K and IQ types; `lanes.nearest`); roundf and lroundf halves away from
zero (Q8_0, Q2_0, TQ); C's conversion towards zero (Q4_0 ... Q5_1; `lanes.truncate`); float32 to
half and to bfloat16 halves to even.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem


@compiled
def nearest_int(value):
    """nearest_int of one float32."""
    raised = mem.bits_of_f32(np.float32(value + np.float32(12582912.0)))
    return np.int64(raised & 0x7FFFFF) - 0x400000


@compiled
def away(value):
    """roundf (and lroundf) of 8 float32 as int32. Only for |value| < 2 ** 31."""
    sign = lanes.bits(value) & lanes.splat_i(-0x80000000)
    below_half = lanes.splat_i(0x3EFFFFFF)  # the float just under 0.5: adding 0.5 would round up
    return lanes.truncate(value + lanes.of_bits(sign | below_half))


@compiled
def to_half(value):
    """The 16 bits of the halves nearest to 8 float32.

    A NaN becomes 0x7e00 with its sign, as in ggml.
    """
    sign = (lanes.bits(value) >> lanes.splat_i(16)) & lanes.splat_i(0x8000)
    quiet = sign | lanes.splat_i(0x7E00)
    return lanes.select(value == value, lanes.half_bits(value), quiet)


@compiled
def to_bfloat(value):
    """The 16 bits of the bfloats nearest to 8 float32.

    A NaN keeps its upper bits and becomes quiet.
    """
    bits = lanes.bits(value)
    upper = bits >> lanes.splat_i(16)
    odd = upper & lanes.splat_i(1)
    rounded = (bits + lanes.splat_i(0x7FFF) + odd) >> lanes.splat_i(16)
    return lanes.select(value == value, rounded, upper | lanes.splat_i(64))


@compiled
def put_half(base, index, value):
    """Put one float32 as a half (as number `index` from `base`); a NaN as in `to_half`."""
    if value == value:
        mem.put_f16(base, index, value)
    else:
        sign = (mem.bits_of_f32(value) >> 16) & 0x8000
        mem.put_u16(base, index, sign | 0x7E00)
