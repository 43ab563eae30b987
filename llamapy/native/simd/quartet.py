"""Four rows side by side: what is counted of each goes into one lane of four."""

from llvmlite import ir
from numba import types

from llamapy.native import levels
from llamapy.native.simd.dots import pairs_i16, pairs_u8s8
from llamapy.native.simd.maths import fold_once, larger
from llamapy.native.simd.vectors import (
    ADDRESS,
    I8,
    I16,
    I32,
    at,
    call,
    const,
    f32x4,
    f32x16,
    i8x32,
    lanes,
    named,
    operation,
)

ROWS = 4


def _across(combine):
    """One lane for each of four rows: all of its lanes, combined."""

    def of(b, x, y, first, second):
        """Two choices of lanes of x and y, combined."""
        first, second = b.shuffle_vector(x, y, lanes(first)), b.shuffle_vector(x, y, lanes(second))
        return combine(b, first, second)

    def body(b, *rows):
        x = [fold_once(b, row, lambda p, q: combine(b, p, q)) for row in rows]
        # As the processor interleaves: within each half of a register.
        x = [
            of(b, *x[i : i + 2], (0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15))
            for i in (0, 2)
        ]
        x = of(b, *x, (0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
        return fold_once(b, x, lambda p, q: combine(b, p, q))

    return body


_FOUR = operation(f32x4, f32x16, f32x16, f32x16, f32x16)
# The greatest lane of each of four, and the sum of its lanes.
greatest_f32x4 = _FOUR(named("greatest_f32x4", _across(larger)))
sums_f32x4 = _FOUR(named("sums_f32x4", _across(lambda b, x, y: b.fadd(x, y))))


@operation(f32x4, f32x4)
def inverse_f32x4(b, x):
    """1 / x, and 0 for 0 and less."""
    zero = const(f32x4, 0.0)
    return b.select(b.fcmp_ordered(">", x, zero), b.fdiv(const(f32x4, 1.0), x), zero)


@operation(f32x16, ADDRESS)
def four_times_f32x16(b, address):
    """Four float32, each for the four lanes of its row."""
    x = b.load(at(b, address, f32x4), align=1, typ=f32x4.ir)
    return b.shuffle_vector(x, x, lanes([i // ROWS for i in range(4 * ROWS)]))


@operation(f32x16, ADDRESS, ADDRESS, ADDRESS, ADDRESS)
def fours_f32x16(b, *rows):
    """Four float32 of each row."""
    x = [b.load(at(b, row, f32x4), align=1, typ=f32x4.ir) for row in rows]
    low, high = (b.shuffle_vector(*x[i : i + 2], lanes(range(8))) for i in (0, 2))
    return b.shuffle_vector(low, high, lanes(range(16)))


def _swapped(b, x, bit):
    return b.shuffle_vector(x, x, lanes([i ^ bit for i in range(16)]))


@operation(f32x16, f32x16)
def greatest_of_fours_f32x16(b, x):
    """In each lane the greatest of the four lanes of its row."""
    x = larger(b, x, _swapped(b, x, 1))
    return larger(b, x, _swapped(b, x, 2))


@operation(f32x4, f32x16)
def fourths_f32x4(b, x):
    """The first lane of each row."""
    return b.shuffle_vector(x, x, lanes(range(0, 16, ROWS)))


@operation(f32x4, f32x16)
def totals_of_fours_f32x4(b, x):
    """The sum of the four lanes of each row."""
    x = b.fadd(x, _swapped(b, x, 1))
    x = b.fadd(x, _swapped(b, x, 2))
    return b.shuffle_vector(x, x, lanes(range(0, 16, ROWS)))


def _packed(b, x):
    """Four <8 x i32> as bytes that they fit."""
    words, out = ir.VectorType(I16, 16), i8x32.ir
    low = call(b, "llvm.x86.avx2.packssdw", words, *x[:2])
    high = call(b, "llvm.x86.avx2.packssdw", words, *x[2:])
    mixed = b.bitcast(call(b, "llvm.x86.avx2.packsswb", out, low, high), ir.VectorType(I32, 8))
    return b.bitcast(b.shuffle_vector(mixed, mixed, lanes((0, 4, 1, 5, 2, 6, 3, 7))), out)


@operation(i8x32, f32x16, f32x16)
def nearest_i8x32(b, p, q):
    """Numbers within -128 and 127, to the nearest integers."""
    out = []
    for x in (p, q):
        for i in (0, 8):
            part = b.shuffle_vector(x, x, lanes(range(i, i + 8)))
            part = call(b, "llvm.rint.v8f32", part.type, part)
            out.append(b.fptosi(part, ir.VectorType(I32, 8)))
    if levels.has("avx2"):
        return _packed(b, out)
    low, high = (b.shuffle_vector(*out[i : i + 2], lanes(range(16))) for i in (0, 2))
    return b.trunc(b.shuffle_vector(low, high, lanes(range(32))), i8x32.ir)


@operation(types.void, i8x32, i8x32, i8x32, i8x32, ADDRESS)
def mingle_i8x32(b, *args):
    """To an address: four bytes of each row, the next four of each ..."""
    *rows, to = args
    x = [b.bitcast(row, ir.VectorType(I32, 8)) for row in rows]
    low, high = (b.shuffle_vector(*x[i : i + 2], lanes(range(16))) for i in (0, 2))
    order = lanes([8 * (i % ROWS) + i // ROWS for i in range(8 * ROWS)])
    whole = b.shuffle_vector(low, high, order)
    b.store(whole, at(b, to, whole.type), align=1)


@operation(f32x4, ADDRESS)
def totals_f32x4(b, address):
    """The sums of sixteen int8 of each row, that lie in turns: four of row 0, four of row 1 ..."""
    kind = ir.VectorType(I8, 64)
    x = b.load(at(b, address, kind), align=1, typ=kind)
    pairs = pairs_u8s8(b, const(kind, 1), x)
    sums = pairs_i16(b, pairs, const(ir.VectorType(I16, 32), 1))
    while sums.type.count > ROWS:
        sums = fold_once(b, sums, b.add)
    return b.sitofp(sums, f32x4.ir)
