"""MXFP4: 32 weights as 4-bit floats (E2M1) under a power of two (E8M0): OCP Microscaling v1.0.

The numbers are kept doubled, so that they are whole, and the scale halved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("e", "u1"), ("qs", "u1", 16)])

# Twice the sixteen E2M1 numbers.
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


@compiled
def e2m1(code):
    """Twice the number of a 4-bit code: sign, two bits of exponent, one of mantissa."""
    exponent, mantissa = (code >> 1) & 3, code & 1
    size = mantissa if exponent == 0 else (2 + mantissa) << (exponent - 1)
    return -size if code & 8 else size


@compiled
def half_power(e):
    """2 ** (e - 128): half of the E8M0 number e. 0 and 1 give subnormal floats."""
    bits = np.uint32(0x200000) << np.uint32(e) if e < 2 else np.uint32(e - 1) << np.uint32(23)
    return mem.f32_of_bits(np.uint32(bits))


@compiled
def unpack(block, q, s, m, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    for j in range(16):
        byte = mem.u8(block + 1, j)
        mem.put_i8(q, j, e2m1(byte & 15))
        mem.put_i8(q, j + 16, e2m1(byte >> 4))
    mem.put_f32(s, 0, half_power(mem.u8(block, 0)))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size decides the power of two; importances change nothing."""
    for i in range(n_rows * n_per_row // 32):
        x, block = src + 128 * i, dst + 17 * i
        most, e = _legacy.size(x, 32), np.int64(0)
        if most > 0:
            # In single precision, as ggml: just below a power of two the logarithm is whole.
            e = (np.int64(np.floor(np.float32(np.log2(np.float64(most))))) - 2 + 127) & 255
        mem.put_u8(block, 0, e)
        scale = half_power(e)
        for j in range(0, 16, 8):
            low, high = codes(x + 4 * j, scale), codes(x + 4 * (j + 16), scale)
            both = low | (high << lanes.splat_i(4))
            lanes.store_bytes(block + 1, j, both)


@compiled
def codes(x, scale):
    """Codes of the numbers nearest to the 8 float32 at `x`; of two equally near the first.

    A candidate wins if it is nearer than the one before it: the distances fall, then rise.
    """
    value = lanes.load(x, 0)
    size = lanes.absolute(value)
    code, before = lanes.splat_i(0), size
    for k in range(1, 8):
        distance = lanes.absolute(lanes.splat(np.float32(e2m1(k)) * scale) - size)
        code = lanes.select(distance < before, lanes.splat_i(k), code)
        before = distance
    negative = (lanes.bits(value) >> lanes.splat_i(28)) & lanes.splat_i(8)
    zero = lanes.splat_i(0)
    return lanes.select(code == zero, zero, code | negative)


class MXFP4(
    Codec,
    name="mxfp4",
    type_id=39,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-12, 12),
    dot_with="q8_0",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        e = blocks["e"].astype(np.uint32)
        scale = np.where(e < 2, np.uint32(0x200000) << (e & 1), (e - 1) << 23).view(np.float32)
        q = E2M1[np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)]
        return scale[:, None] * q.astype(np.float32)
