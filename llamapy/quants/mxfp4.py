"""MXFP4: 32 weights as 4-bit floats (E2M1) under a power of two (E8M0): OCP Microscaling v1.0.

The numbers are kept doubled, so that they are whole, and the scale halved.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
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

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        e = blocks["e"].astype(np.uint32)
        scale = np.where(e < 2, np.uint32(0x200000) << (e & 1), (e - 1) << 23).view(np.float32)
        q = E2M1[np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)]
        return scale[:, None] * q.astype(np.float32)
