"""TQ2_0: 256 weights as -1, 0 or 1, four to a byte, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.q2_k import pack_two_bits, two_bits
from llamapy.quants.rounding import away

BLOCK = np.dtype([("qs", "u1", 64), ("d", "<f2")])


@compiled
def unpack(block, q, s, m, tables):
    """Byte l of half h holds the values l, l + 32, l + 64, l + 96 of its 128, lowest bits first."""
    for half in range(2):
        for l in range(32):
            byte = mem.u8(block + 32 * half, l)
            for k in range(4):
                mem.put_i8(q + 128 * half + 32 * k, l, ((byte >> (2 * k)) & 3) - 1)
    mem.put_f32(s, 0, mem.f16(block + 64, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size is the scale; importances change nothing."""
    levels = mem.local(256)
    for i in range(n_rows * n_per_row // 256):
        x, block = src + 1024 * i, dst + 66 * i
        d = _legacy.size(x, 256)
        inverse = lanes.splat(np.float32(1) / d if d != 0 else np.float32(0))
        mem.put_f16(block + 64, 0, d)
        for j in range(0, 256, 8):
            whole = away(lanes.load(x, j) * inverse) + lanes.splat_i(1)
            lanes.store_bytes(levels, j, whole)
        pack_two_bits(levels, block)


class TQ2_0(
    Codec,
    name="tq2_0",
    type_id=35,
    block=BLOCK,
    n_values=256,
    group=256,
    q_range=(-1, 2),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        q = two_bits(blocks["qs"]).astype(np.int8) - np.int8(1)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
