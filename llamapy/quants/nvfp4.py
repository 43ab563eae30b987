"""NVFP4: 4 groups of 16 weights as 4-bit floats (E2M1) under 8-bit unsigned float scales (UE4M3).

As in MXFP4 the numbers are kept doubled and the scales halved. A factor for the whole tensor is
not part of the block: files keep it in a tensor of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.mxfp4 import E2M1, codes, e2m1

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


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size of a group becomes 6 at most; importances change nothing."""
    for i in range(n_rows * n_per_row // 16):
        x, block, group = src + 64 * i, dst + 36 * (i // 4), i % 4
        code = ue4m3(_legacy.size(x, 16) / np.float32(6))
        scale = half_ue4m3(code)
        mem.put_u8(block, group, code)
        both = codes(x, scale) | (codes(x + 32, scale) << lanes.splat_i(4))
        lanes.store_bytes(block + 4, 8 * group, both)


@compiled
def ue4m3(value):
    """The UE4M3 code nearest to `value` (halves up); 126 (448) for all that round to 256."""
    bits = np.int64(mem.bits_of_f32(value))
    if bits < 121 << 23:  # below 2 ** -6: subnormal, in steps of 2 ** -9
        return min(np.int64(value * np.float32(512) + np.float32(0.5)), np.int64(7))
    code = (bits - (120 << 23) + (1 << 19)) >> 20
    return code if code < 120 else np.int64(126)


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
    encode = encode

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
