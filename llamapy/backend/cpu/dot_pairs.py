"""Weight rows times one row of activations, two rows at a time, for compiled code.

The two lie far apart. A core can wait for so many loads at a time and no more; what two rows share
is loaded once, so that more lines of weights are under way, and the processor reads ahead for each
of them. Rows that are neighbours lie in one page, where it follows only one: half as fast as one
row after the other.
"""

from __future__ import annotations

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.backend.cpu.dots import AHEAD, block_dots, dot, dot_row, row_total
from llamapy.native import compiled, mem, simd


@compiled
def products(w, rows, stride, x, k, scratch, tables, y, first, last):
    """y[r] = row r of the weights, `stride` bytes after the one before, times a quantized row."""
    half = (last - first) // 2 if in_pairs(w) else 0
    for r in range(first, first + half):
        row = rows + r * stride
        one, two = two_rows(w, row, row + half * stride, x, k, tables)
        mem.put_f32(y, r, one)
        mem.put_f32(y, r + half, two)
    for r in range(first + 2 * half, last):
        mem.put_f32(y, r, dot_row(w, rows + r * stride, x, k, scratch, tables))


@compiled
def float_products(w, rows, stride, element, x, k, y, first, last):
    """As `products` for rows of F32, F16 or BF16, whose elements are `element` bytes apart, and a
    row of float32."""
    half = (last - first) // 2
    for r in range(first, first + half):
        row = rows + r * stride
        one, two = two_dots(w, row, row + half * stride, element, x, k)
        mem.put_f32(y, r, one)
        mem.put_f32(y, r + half, two)
    for r in range(first + 2 * half, last):
        mem.put_f32(y, r, dot(w, rows + r * stride, element, x, k))


@compiled
def in_pairs(w):
    """Whether `two_rows` can multiply this type. IQ4_XS has so much to compute that it gains
    nothing."""
    return values.halves(w) > 0 or (values.has_dot(w) and not values.is_wide(w))


@compiled(forceinline=True)
def two_rows(w, row, other, x, k, tables):
    if values.halves(w) > 0:
        return two_dot_blocks(w, row, other, x, k, tables)
    return two_dot_large_blocks(w, row, other, x, k, tables)


@compiled(forceinline=True)
def two_dot_blocks(w, row, other, x, k, tables):
    """Rows in blocks of 32, see `dots.dot_blocks`."""
    pairs, size, n = act.pairs_32(x, k, 1), values.n_bytes(w), k // 32
    a, b, p, q = simd.zeros_f32x8(), simd.zeros_f32x8(), simd.zeros_f32x4(), simd.zeros_f32x4()
    for i in range(n):
        one, two, y, pair = row + size * i, other + size * i, x + 32 * i, pairs + 8 * i
        simd.prefetch(one + AHEAD)
        simd.prefetch(two + AHEAD)
        a, p = block_dots(w, one, y, pair, tables, a, p)
        b, q = block_dots(w, two, y, pair, tables, b, q)
    return row_total(w, a, p), row_total(w, b, q)


@compiled
def two_dot_large_blocks(w, row, other, x, k, tables):
    """Rows in blocks of 256, see `dots.dot_large_blocks`."""
    a, b, size = simd.zeros_f32x8(), simd.zeros_f32x8(), 1024 // values.group(w)
    records, sums = act.records_256(x, k, 1), act.group_sums(w, x, k, 1)
    for i in range(k // 256):
        at = values.n_bytes(w) * i
        for line in range(at, at + values.n_bytes(w), 64):
            simd.prefetch(row + AHEAD + line)
            simd.prefetch(other + AHEAD + line)
        y, z, s = x + 256 * i, records + 64 * i, sums + size * i
        a = a + values.dot(w, row + at, y, z, s, tables)
        b = b + values.dot(w, other + at, y, z, s, tables)
    return simd.total_f32x8(a), simd.total_f32x8(b)


@compiled
def two_dots(w, row, other, stride, x, k):
    """See `dots.dot`."""
    a, b = simd.zeros_f32x16(), simd.zeros_f32x16()
    c, d = a, b
    size = values.n_bytes(w)
    whole = k // 32 * 32 if stride == size else 0
    for i in range(0, whole, 32):
        y, z = simd.load_f32x16(x + 4 * i), simd.load_f32x16(x + 4 * i + 64)
        a = simd.fma_f32x16(values.load_16(w, row + size * i), y, a)
        b = simd.fma_f32x16(values.load_16(w, row + size * (i + 16)), z, b)
        c = simd.fma_f32x16(values.load_16(w, other + size * i), y, c)
        d = simd.fma_f32x16(values.load_16(w, other + size * (i + 16)), z, d)
    one, two = simd.total_f32x16(a + b), simd.total_f32x16(c + d)
    for i in range(whole, k):
        one += values.load_1(w, row + stride * i, 0) * mem.f32(x, i)
        two += values.load_1(w, other + stride * i, 0) * mem.f32(x, i)
    return one, two
