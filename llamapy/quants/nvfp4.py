"""NVFP4: 4 groups of 16 weights as 4-bit floats (E2M1) under 8-bit unsigned float scales (UE4M3).

As in MXFP4 the numbers are kept doubled and the scales halved. A factor for the whole tensor is
not part of the block: files keep it in a tensor of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants.codec import Codec
from llamapy.quants.mxfp4 import E2M1, e2m1

BLOCK = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])


@compiled
def half_ue4m3(code):
    """Half of the number of a UE4M3 code (bias 7; the top bit is not used; 127 counts as 0)."""
    if code == 0 or code == 127:
        return np.float32(0)
    exponent, mantissa = (code >> 3) & 15, np.uint32(code & 7)
    if exponent == 0:
        return np.float32(mantissa) * np.float32(2.0**-10)
    return mem.f32_of_bits(
        np.uint32((np.uint32(exponent + 119) << np.uint32(23)) | (mantissa << np.uint32(20)))
    )


@compiled
def unpack(block, q, s, m, tables):
    """Byte j of the 8 of a group holds value j in its low half and value j + 8 in its high half."""
    for group in range(4):
        for j in range(8):
            byte = mem.u8(block + 4 + 8 * group, j)
            mem.put_i8(q + 16 * group, j, e2m1(byte & 15))
            mem.put_i8(q + 16 * group, j + 8, e2m1(byte >> 4))
        mem.put_f32(s, group, half_ue4m3(mem.u8(block, group)))
        mem.put_f32(m, group, np.float32(0))


class NVFP4(
    Codec,
    name="nvfp4",
    type_id=40,
    block=BLOCK,
    n_values=64,
    group=16,
    q_range=(-12, 12),
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        code = blocks["d"]
        exponent, mantissa = (code >> 3) & 15, (code & 7).astype(np.float32)
        normal = np.ldexp(np.float32(1) + mantissa / np.float32(8), exponent.astype(np.int32) - 8)
        scale = np.where(exponent == 0, mantissa * np.float32(2.0**-10), normal)
        scale = np.where(code == 127, np.float32(0), scale).astype(np.float32)
        qs = blocks["qs"].reshape(-1, 4, 8)
        q = E2M1[np.concatenate([qs & 15, qs >> 4], axis=-1)].astype(np.float32)
        return (scale[..., None] * q).reshape(-1, 64)
