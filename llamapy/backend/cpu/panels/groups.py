"""What the forms share: unpacked rows turned into panels, columns found, results put where they
belong."""

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
