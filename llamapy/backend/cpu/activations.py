"""Activations in 8 (or 16) bits: the layout of a quantized row, and making one.

A row of k values: k integers; then a scale for each 32 and the sum of the real values for each 32;
then the same for each 16 (the scale repeated), so that weights with groups of 16 or of 32 find what
they need side by side; then, for each 32, scale and sum as a pair; then, for each 256, 64 bytes:
the eight scales, these as integers (int16), and the unit of the integers. Integers are int8 (for
products with few columns; those with many: `quartets`) or int16 (finer, and never saturating).
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.step import Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

TOP = 520  # the greatest scale as an integer: 63 times that is within 16 bits


def row_bytes(k: int, size: int) -> int:
    """Bytes of a row of k values with integers of `size` bytes; a multiple of 64.

    64 bytes of zeros at the end: readers that take sixteen scales or sums at a time may run over.
    """
    numbers = 2 * 4 * (k // 32) + 2 * 4 * (k // 16) + 64 + 8 * (k // 32) + 64 * (k // 256)
    return apart(_up(k * size) + numbers)


def apart(n: int) -> int:
    """Bytes from one row to the next, for rows of n: a multiple of 64, but not of 1024. Four rows
    are read side by side, and where only the higher bits of their addresses differ, that takes up
    to twice as long."""
    n = _up(n)
    return n + 64 if n % 1024 == 0 else n


def _up(n: int) -> int:
    return (n + 63) // 64 * 64


@compiled
def scales_32(row, k, size):
    """Address of the scales for each 32; the sums follow after k // 32 of them."""
    return row + (k * size + 63) // 64 * 64


@compiled
def sums_32(row, k, size):
    return scales_32(row, k, size) + 4 * (k // 32)


@compiled
def scales_16(row, k, size):
    return scales_32(row, k, size) + 8 * (k // 32)


@compiled
def sums_16(row, k, size):
    return scales_16(row, k, size) + 4 * (k // 16)


@compiled
def pairs_32(row, k, size):
    return sums_16(row, k, size) + 4 * (k // 16) + 64


@compiled
def records_256(row, k, size):
    """The address of what there is for each 256."""
    return pairs_32(row, k, size) + 8 * (k // 32)


@compiled
def group_scales(w, row, k, size):
    """The scales for each group of a weight type."""
    return scales_32(row, k, size) if values.group(w) == 32 else scales_16(row, k, size)


@compiled
def group_sums(w, row, k, size):
    return sums_32(row, k, size) if values.group(w) == 32 else sums_16(row, k, size)


@compiled
def copy_row(x, step, k, out):
    """k float32, `step` bytes from one to the next, side by side."""
    if step == 4:
        mem.copy(out, x, 4 * k)
    else:
        for i in range(k):
            mem.put_f32(out, i, mem.f32(x + i * step, 0))


@compiled
def flat_row(x, step, k, scratch):
    """The address of a row side by side: itself, or a copy in scratch."""
    if step == 4:
        return x
    copy_row(x, step, k, scratch)
    return scratch


@compiled
def quantize_row(x, row, k, size):
    """k float32 (a multiple of 32) at `x` -> a row with integers of `size` 1 or 2 bytes."""
    top = np.float32(127) if size == 1 else np.float32(32767)
    d32, s32 = scales_32(row, k, size), sums_32(row, k, size)
    d16, s16 = scales_16(row, k, size), sums_16(row, k, size)
    pairs = pairs_32(row, k, size)
    for i in range(k // 32):
        a, b = simd.load_f32x16(x + 128 * i), simd.load_f32x16(x + 128 * i + 64)
        greatest = simd.greatest_f32x16(simd.max_f32x16(simd.abs_f32x16(a), simd.abs_f32x16(b)))
        scale = greatest / top
        inverse = simd.splat_f32x16(top / greatest if greatest > 0 else np.float32(0))
        p, q = simd.nearest_i32x16(a * inverse), simd.nearest_i32x16(b * inverse)
        if size == 1:
            simd.store_i8_i32x16(row + 32 * i, p)
            simd.store_i8_i32x16(row + 32 * i + 16, q)
        else:
            simd.store_i16_i32x16(row + 64 * i, p)
            simd.store_i16_i32x16(row + 64 * i + 32, q)
        first = scale * np.float32(simd.total_i32x16(p))
        second = scale * np.float32(simd.total_i32x16(q))
        mem.put_f32(d32, i, scale)
        mem.put_f32(s32, i, first + second)
        mem.put_f32(pairs, 2 * i, scale)
        mem.put_f32(pairs, 2 * i + 1, first + second)
        mem.put_f32(d16, 2 * i, scale)
        mem.put_f32(d16, 2 * i + 1, scale)
        mem.put_f32(s16, 2 * i, first)
        mem.put_f32(s16, 2 * i + 1, second)
    simd.store_f32x16(s16 + 4 * (k // 16), simd.zeros_f32x16())
    for i in range(k // 256 if size == 1 else 0):  # products of 16 bits have float scales only
        put_record(d32 + 32 * i, records_256(row, k, size) + 64 * i)


@compiled
def put_record(d, record):
    """Eight scales, at d, for products with scales of weights that are integers up to 63: as
    integers, of which such products fit 16 bits."""
    scales = simd.load_f32x8(d)
    unit = simd.greatest_f32x8(scales) / np.float32(TOP)
    inverse = np.float32(1) / unit if unit > 0 else np.float32(0)
    simd.store_f32x8(record, scales)
    simd.store_i16_i32x8(record + 32, simd.nearest_i32x8(scales * simd.splat_f32x8(inverse)))
    mem.put_f32(record, 12, unit)


@kernel
def quantize(node, ith, nth, sync, a, b):
    """Every row of source 1 into the shared scratch; parameter 0: bytes an integer, 1: bytes a
    row."""
    size, row_size, k = rec.param(node, 0), rec.param(node, 1), rec.ne(node, 1, 0)
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        x, row = rec.row_address(node, 1, r), rec.shared(node) + r * row_size
        x = flat_row(x, rec.nb(node, 1, 0), k, rec.private(node, ith))
        if size == 1:
            quantize_row(x, row, k, 1)
        else:
            quantize_row(x, row, k, 2)


def quantize_step(x: Tensor, size: int) -> Step:
    """The step that leaves x's rows, quantized to integers of `size` bytes, in the shared
    scratch."""
    row = row_bytes(x.ne[0], size)
    flat = 0 if x.contiguous_rows else 4 * x.ne[0]
    key = (id(x), size)
    return Step(quantize, (None, x), (size, row), shared=row * x.n_rows, private=flat, leaves=key)
