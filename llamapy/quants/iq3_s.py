"""IQ3_S: 8 groups of 32 weights, each as 8 points of 4, 32 sign bits and a 4-bit scale.

The grid has 512 points.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.quants._grid import Array, Floats, nibbles, points, sign_masks, signed, with_signs
from llamapy.quants.codec import Codec

# `qh` holds the ninth bits of the indices, eight to a byte.
BLOCK = np.dtype(
    [("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)]
)


@compiled
def unpack(block, q, s, m, tables):
    d, grid, masks = mem.f16(block, 0), mem.i64(tables, 0), mem.i64(tables, 1)
    for k in range(32):
        ninths = mem.u8(block + 66, k >> 2) >> 2 * (k & 3)
        low = np.uint64(mem.u32(grid, mem.u8(block + 2, 2 * k) | (ninths & 1) << 8))
        high = np.uint64(mem.u32(grid, mem.u8(block + 2, 2 * k + 1) | (ninths & 2) << 7))
        mask = mem.u64(masks, mem.u8(block + 74, k))
        mem.put_u64(q, k, with_signs(low | high << np.uint64(32), mask))
    for group in range(8):
        scale = (mem.u8(block + 106, group >> 1) >> 4 * (group & 1)) & 15
        mem.put_f32(s, group, d * np.float32(1 + 2 * scale))
        mem.put_f32(m, group, np.float32(0))


class IQ3_S(
    Codec,
    name="iq3_s",
    type_id=21,
    block=BLOCK,
    n_values=256,
    group=32,
    q_range=(-15, 15),
    dot_with="q8_K",
):
    unpack = unpack

    @staticmethod
    def dequantize(blocks: Array) -> Floats:
        d = blocks["d"].astype(np.float32)[:, None]
        scale = d * (1 + 2 * nibbles(blocks["scales"]))  # [n, 8]
        ninth = np.unpackbits(blocks["qh"], axis=-1, bitorder="little").astype(np.uint16)
        pairs = points("iq3_s")[blocks["qs"] | ninth << 8].reshape(-1, 32, 8)
        values = signed(pairs, blocks["signs"]).reshape(-1, 8, 32)
        return (scale[..., None] * values).reshape(len(blocks), 256)

    @staticmethod
    def tables() -> tuple[Array, ...]:
        return points("iq3_s"), sign_masks(8)
