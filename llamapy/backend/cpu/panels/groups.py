"""What the forms share: unpacked rows turned into panels, and adding the products of a group."""

from __future__ import annotations

from llamapy.backend.cpu import values
from llamapy.native import compiled, mem, simd

ROWS = 16
SCRATCH = values.SCRATCH + ROWS * 2 * 256  # for `pack`: a block of every row, as numbers of 16 bits


@compiled
def turn_rows(flat, n, panel):
    """Sixteen rows of n words of 32 bits (side by side at `flat`; n a multiple of 8) -> panel[n,
    16]."""
    for i in range(0, n, 8):
        simd.turn_u32x8(flat + 4 * i, 4 * n, panel + 64 * i, 64)
        simd.turn_u32x8(flat + 4 * (i + 8 * n), 4 * n, panel + 64 * i + 32, 64)


@compiled
def ask_for(w, rows, stride, k):
    """Have the rows of a panel on their way before they are read in turns, a block of each: the
    processor itself reads ahead along few streams only. They need not exist."""
    for r in range(ROWS):
        for line in range(0, k // values.n_values(w) * values.n_bytes(w), 64):
            simd.prefetch(rows + r * stride + line)


@compiled
def addresses(x, size, c, m):
    """Of columns c to c + 3 of m, which are `size` bytes apart; past the end the last one again."""
    own, last = x + c * size, m - 1 - c
    return own, own + min(1, last) * size, own + min(2, last) * size, own + min(3, last) * size


@compiled
def add_group(c, total, s, d, g):
    """c + total * scale * (scale of x), all in sixteen lanes."""
    return simd.fma_f32x16(simd.to_f32x16(total), s * simd.splat_f32x16(mem.f32(d, g)), c)


@compiled
def add_minimum(c, m, t, g):
    """c + minimum * (sum of x)."""
    return simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, g)), c)


@compiled
def no_products():
    """Sixteen rows times four columns, before anything is added."""
    zero = simd.zeros_f32x16()
    return zero, zero, zero, zero


@compiled
def add_products(c, totals, x, scales, minimums, d, t, g, has_minimums):
    """c + the products of group g, for four columns whose rows are at x. d and t: the scales and
    the sums of the first column."""
    s, b = simd.load_f32x16(scales + 64 * g), d - x[0]
    c0, c1 = add_group(c[0], totals[0], s, d, g), add_group(c[1], totals[1], s, b + x[1], g)
    c2, c3 = add_group(c[2], totals[2], s, b + x[2], g), add_group(c[3], totals[3], s, b + x[3], g)
    if has_minimums:
        m, b = simd.load_f32x16(minimums + 64 * g), t - x[0]
        c0, c1 = add_minimum(c0, m, t, g), add_minimum(c1, m, b + x[1], g)
        c2, c3 = add_minimum(c2, m, b + x[2], g), add_minimum(c3, m, b + x[3], g)
    return c0, c1, c2, c3


@compiled
def store_products(out, c):
    """To float32 [4, 16] at out."""
    simd.store_f32x16(out, c[0])
    simd.store_f32x16(out + 64, c[1])
    simd.store_f32x16(out + 128, c[2])
    simd.store_f32x16(out + 192, c[3])


@compiled
def store_tile(tile, y, stride, columns, live):
    """A tile [columns, 16] to its columns, `stride` bytes apart, and the rows that exist."""
    for j in range(columns):
        if live == ROWS:
            simd.store_f32x16(y + j * stride, simd.load_f32x16(tile + 64 * j))
        else:
            for r in range(live):
                mem.put_f32(y + j * stride, r, mem.f32(tile + 64 * j, r))
