"""TQ1_0: 256 weights as -1, 0 or 1, five to a byte, one half-precision scale."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants import _legacy
from llamapy.quants.codec import Codec
from llamapy.quants.rounding import away

BLOCK = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])


@compiled
def unpack_run(bytes_, n_bytes, n_digits, q):
    """Bytes of base-3 fractions -> n_digits runs of n_bytes values, leading digits first."""
    power = 1
    for digit in range(n_digits):
        for j in range(n_bytes):
            fraction = (mem.u8(bytes_, j) * power) & 255
            mem.put_i8(q, digit * n_bytes + j, ((fraction * 3) >> 8) - 1)
        power *= 3


@compiled
def unpack(block, q, s, m, tables):
    """Bytes 0-31 hold values 0-159, bytes 32-47 hold 160-239, the four of `qh` hold 240-255."""
    unpack_run(block, 32, 5, q)
    unpack_run(block + 32, 16, 5, q + 160)
    unpack_run(block + 48, 4, 4, q + 240)
    mem.put_f32(s, 0, mem.f16(block + 52, 0))
    mem.put_f32(m, 0, np.float32(0))


@compiled
def encode(src, dst, n_rows, n_per_row, importance, tables):
    """The largest size is the scale; importances change nothing."""
    trits = mem.local(256)
    for i in range(n_rows * n_per_row // 256):
        x, block = src + 1024 * i, dst + 54 * i
        d = _legacy.size(x, 256)
        inverse = lanes.splat(np.float32(1) / d if d != 0 else np.float32(0))
        mem.put_f16(block + 52, 0, d)
        for j in range(0, 256, 8):
            whole = away(lanes.load(x, j) * inverse) + lanes.splat_i(1)
            lanes.store_bytes(trits, j, whole)
        for j in range(0, 32, 8):
            lanes.store_bytes(block, j, packed(trits + j, 32, 5))
        for j in range(0, 16, 8):
            lanes.store_bytes(block + 32, j, packed(trits + 160 + j, 16, 5))
        last = packed(trits + 240, 4, 4)
        lanes.store_bytes(trits, 0, last)
        mem.copy(block + 48, trits, 4)


@compiled
def packed(trits, stride, n_digits):
    """8 bytes of n_digits digits 0 to 2 each, `stride` apart, as fractions of 243 rounded up."""
    value = lanes.splat_i(0)
    for digit in range(n_digits):
        next_digit = lanes.load_bytes(trits, digit * stride)
        value = value * lanes.splat_i(3) + next_digit
    if n_digits == 4:
        value = value * lanes.splat_i(3)
    value = value & lanes.splat_i(255)
    raised = value * lanes.splat_i(256) + lanes.splat_i(242)
    return (raised * lanes.splat_i(17261)) >> lanes.splat_i(22)


class TQ1_0(
    Codec,
    name="tq1_0",
    type_id=34,
    block=BLOCK,
    n_values=256,
    group=256,
    q_range=(-1, 1),
    dot_with="q8_K",
):
    unpack = unpack
    encode = encode

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        powers = np.array([1, 3, 9, 27, 81], np.uint8)[:, None]
        qs, n = blocks["qs"], len(blocks)
        runs = (
            qs[:, None, :32] * powers,
            qs[:, None, 32:] * powers,
            blocks["qh"][:, None] * powers[:4],
        )
        fraction = np.concatenate([run.reshape(n, -1) for run in runs], axis=-1).astype(np.uint16)
        q = (fraction * np.uint16(3) >> 8).astype(np.int8) - np.int8(1)
        return blocks["d"].astype(np.float32)[:, None] * q.astype(np.float32)
