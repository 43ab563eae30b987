"""IQ4_NL: 32 weights as 4-bit indices of sixteen uneven numbers, one half-precision scale."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats
from llamapy.quants._iq4 import VALUES
from llamapy.quants.codec import Codec

BLOCK = np.dtype([("d", "<f2"), ("qs", "u1", 16)])


@compiled
def unpack(block, q, s, m, tables):
    """Byte j holds value j in its low half and value j + 16 in its high half."""
    values = mem.i64(tables, 0)
    for j in range(16):
        byte = mem.u8(block + 2, j)
        mem.put_i8(q, j, mem.i8(values, byte & 15))
        mem.put_i8(q, j + 16, mem.i8(values, byte >> 4))
    mem.put_f32(s, 0, mem.f16(block, 0))
    mem.put_f32(m, 0, np.float32(0))


class IQ4_NL(
    Codec,
    name="iq4_nl",
    type_id=20,
    block=BLOCK,
    n_values=32,
    group=32,
    q_range=(-127, 113),
    dot_with="q8_0",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        codes = np.concatenate([blocks["qs"] & 15, blocks["qs"] >> 4], axis=-1)
        return blocks["d"].astype(np.float32)[:, None] * VALUES[codes].astype(np.float32)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return (VALUES,)
