"""Rows of any tensor type as float32 and back, for compiled code. `w` is the phantom of the type.

The facts of a type (values and bytes a block, its `unpack` and `encode`) come from its codec;
nothing here knows one
type from another, but for the plain ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import ByType, compiled, mem, simd
from llamapy.quants import codec

SCRATCH = 256 + 64 + 64  # the int8 values, scales and minimums of a block
PLAIN = ("f32", "f16", "bf16")


@compiled
def no_unpack(block, q, s, m, tables):
    pass


@compiled
def no_numbers(block, tables):
    return simd.load_u8x32(block)


@compiled
def no_dot(block, x, d, sums, tables):
    return simd.zeros_f32x8()


@compiled
def no_encode(src, dst, n_rows, n_per_row, importance, tables):
    pass


@compiled
def f32_16(address):
    return simd.load_f32x16(address)


@compiled
def f16_16(address):
    return simd.load_f16_f32x16(address)


@compiled
def bf16_16(address):
    return simd.load_bf16_f32x16(address)


@compiled
def put_f32_16(address, x):
    simd.store_f32x16(address, x)


@compiled
def put_f16_16(address, x):
    simd.store_f16_f32x16(address, x)


@compiled
def put_bf16_16(address, x):
    simd.store_bf16_f32x16(address, x)


@compiled
def f32_1(address, i):
    return mem.f32(address, i)


@compiled
def f16_1(address, i):
    return mem.f16(address, i)


@compiled
def bf16_1(address, i):
    return mem.bf16(address, i)


@compiled
def i32_1(address, i):
    return np.float32(mem.i32(address, i))


@compiled
def put_f32_1(address, i, value):
    mem.put_f32(address, i, value)


@compiled
def put_f16_1(address, i, value):
    mem.put_f16(address, i, value)


@compiled
def put_bf16_1(address, i, value):
    """Nearest, ties to even; NaN stays NaN."""
    bits = mem.bits_of_f32(value)
    if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000):
        mem.put_u16(address, i, np.uint16((bits >> np.uint32(16)) | np.uint32(64)))
    else:
        rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        mem.put_u16(address, i, np.uint16(rounded >> np.uint32(16)))


@compiled
def put_i32_1(address, i, value):
    mem.put_i32(address, i, np.int32(value))


def group_of(kind: type[codec.Codec]) -> int:
    """Values a scale in the kernels: 16 or 32. Larger groups: the scale is repeated."""
    return min(kind.group or 32, 32)


def spans_more_than_seven_bits(kind: type[codec.Codec]) -> bool:
    """Whether the numbers of a type, shifted to start at 0, need a full byte: then they stay
    signed."""
    low, high = kind.q_range
    return high - low > 127


def _plain(choices: dict[str, Any]) -> Any:
    return lambda label: choices.get(label, choices["f32"])


is_plain = ByType("is_plain", lambda t: t in PLAIN, 0)
n_values = ByType("n_values", lambda t: codec.get(t).n_values, 0)
n_bytes = ByType("n_bytes", lambda t: codec.get(t).n_bytes, 0)
own_group = ByType("own_group", lambda t: codec.get(t).group or 32, 0)
group = ByType("group", lambda t: group_of(codec.get(t)), 0)
is_wide = ByType("is_wide", lambda t: spans_more_than_seven_bits(codec.get(t)), 0)
has_offset = ByType("has_offset", lambda t: codec.get(t).has_min or codec.get(t).q_range[0] != 0, 0)
has_min = ByType("has_min", lambda t: codec.get(t).has_min, 0)
lowest = ByType("lowest", lambda t: codec.get(t).q_range[0], 0)
unpack = ByType("unpack", lambda t: codec.get(t).unpack or no_unpack, 5)
halves = ByType("halves", lambda t: codec.get(t).halves, 0)
numbers = ByType("numbers", lambda t: codec.get(t).numbers or no_numbers, 2)
has_dot = ByType("has_dot", lambda t: codec.get(t).dot is not None, 0)
dot = ByType("dot", lambda t: codec.get(t).dot or no_dot, 5)
encode = ByType("encode", lambda t: codec.get(t).encode or no_encode, 6)
load_16 = ByType("load_16", _plain({"f32": f32_16, "f16": f16_16, "bf16": bf16_16}), 1)
put_16 = ByType("put_16", _plain({"f32": put_f32_16, "f16": put_f16_16, "bf16": put_bf16_16}), 2)
load_1 = ByType("load_1", _plain({"f32": f32_1, "f16": f16_1, "bf16": bf16_1, "i32": i32_1}), 2)
put_1 = ByType(
    "put_1", _plain({"f32": put_f32_1, "f16": put_f16_1, "bf16": put_bf16_1, "i32": put_i32_1}), 3
)


@compiled
def unpack_groups(w, block, q, s, m, tables):
    """As the type's `unpack`, with a scale and a minimum for each group of 16 or 32."""
    unpack(w, block, q, s, m, tables)
    if own_group(w) > group(w):
        times = own_group(w) // group(w)
        for j in range(n_values(w) // group(w) - 1, -1, -1):
            mem.put_f32(s, j, mem.f32(s, j // times))
            mem.put_f32(m, j, mem.f32(m, j // times))


@compiled
def row_to_f32(w, src, dst, n, scratch, tables):
    """n values of a row at `src` as float32 at `dst`, with the bits that the codec's `dequantize`
    gives."""
    if is_plain(w):
        whole = n // 16 * 16
        for i in range(0, whole, 16):
            simd.store_f32x16(dst + 4 * i, load_16(w, src + n_bytes(w) * i))
        for i in range(whole, n):
            mem.put_f32(dst, i, load_1(w, src, i))
        return
    q, s, m = scratch, scratch + 256, scratch + 320
    for b in range(n // n_values(w)):
        unpack(w, src + b * n_bytes(w), q, s, m, tables)
        out = dst + 4 * b * n_values(w)
        for j in range(n_values(w) // own_group(w)):
            scale, minimum = simd.splat_f32x16(mem.f32(s, j)), simd.splat_f32x16(mem.f32(m, j))
            for i in range(j * own_group(w), (j + 1) * own_group(w), 16):
                simd.store_f32x16(out + 4 * i, scale * simd.load_i8_f32x16(q + i) - minimum)


@compiled
def row_from_f32(w, src, dst, n, tables):
    """n float32 at `src` as a row of the type at `dst`."""
    if is_plain(w):
        whole = n // 16 * 16
        for i in range(0, whole, 16):
            put_16(w, dst + n_bytes(w) * i, simd.load_f32x16(src + 4 * i))
        for i in range(whole, n):
            put_1(w, dst, i, mem.f32(src, i))
    else:
        encode(w, src, dst, 1, n, 0, tables)
