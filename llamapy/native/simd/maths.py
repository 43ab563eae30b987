"""Float operations on vectors: fma, conversions, sums, maximum, exp."""

import math

import numpy as np
from llvmlite import ir
from numba import types

from llamapy.native.simd.vectors import (
    ADDRESS,
    F16,
    I16,
    I32,
    at,
    call,
    const,
    f32x4,
    f32x8,
    f32x16,
    i32x8,
    i32x16,
    lanes,
    named,
    operation,
)  # fmt: skip

_WIDE = ((f32x8, i32x8), (f32x16, i32x16))


def _fma(kind):
    def body(b, x, y, z):
        return call(b, f"llvm.fma.v{kind.n}f32", kind.ir, x, y, z)

    return operation(kind, kind, kind, kind)(named(f"fma_{kind.name}", body))


fma_f32x8, fma_f32x16 = _fma(f32x8), _fma(f32x16)


def _to_f32(kind, whole):
    return operation(kind, whole)(named(f"to_{kind.name}", lambda b, x: b.sitofp(x, kind.ir)))


to_f32x8, to_f32x16 = (_to_f32(*pair) for pair in _WIDE)


def _to_i32(kind, whole):
    """Nearest integer, ties to even."""

    def body(b, x):
        return b.fptosi(call(b, f"llvm.rint.v{kind.n}f32", kind.ir, x), whole.ir)

    return operation(whole, kind)(named(f"nearest_{whole.name}", body))


nearest_i32x8, nearest_i32x16 = (_to_i32(*pair) for pair in _WIDE)


def larger(b, x, y):
    """Lane-wise maximum as one instruction: y where either is NaN."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


def smaller(b, x, y):
    return b.select(b.fcmp_ordered("<", x, y), x, y)


def _pairwise(kind, name, body):
    return operation(kind, kind, kind)(named(f"{name}_{kind.name}", body))


max_f32x4, max_f32x8, max_f32x16 = (
    _pairwise(kind, "max", larger) for kind in (f32x4, f32x8, f32x16)
)
min_f32x8, min_f32x16 = _pairwise(f32x8, "min", smaller), _pairwise(f32x16, "min", smaller)


def _abs(kind):
    return operation(kind, kind)(
        named(f"abs_{kind.name}", lambda b, x: call(b, f"llvm.fabs.v{kind.n}f32", kind.ir, x))
    )


abs_f32x8, abs_f32x16 = _abs(f32x8), _abs(f32x16)


def fold(b, x, combine):
    """Combine the lanes of a vector by halves, in a fixed order; a scalar LLVM value."""
    while x.type.count > 1:
        x = fold_once(b, x, combine)
    return b.extract_element(x, ir.Constant(I32, 0))


def fold_once(b, x, combine):
    """Combine the lower half of a vector with the upper."""
    n = x.type.count // 2
    low = b.shuffle_vector(x, x, lanes(range(n)))
    return combine(low, b.shuffle_vector(x, x, lanes(range(n, 2 * n))))


def _total(kind):
    return operation(types.float32, kind)(
        named(f"total_{kind.name}", lambda b, x: fold(b, x, b.fadd))
    )


total_f32x4, total_f32x8, total_f32x16 = _total(f32x4), _total(f32x8), _total(f32x16)


def _greatest(kind):
    def body(b, x):
        return fold(b, x, lambda y, z: larger(b, y, z))

    return operation(types.float32, kind)(named(f"greatest_{kind.name}", body))


greatest_f32x8, greatest_f32x16 = _greatest(f32x8), _greatest(f32x16)


def _total_i32(kind):
    return operation(types.int32, kind)(named(f"total_{kind.name}", lambda b, x: fold(b, x, b.add)))


total_i32x8, total_i32x16 = _total_i32(i32x8), _total_i32(i32x16)


def _load_half(kind):
    def body(b, address):
        half = ir.VectorType(F16, kind.n)
        return b.fpext(b.load(at(b, address, half), align=1, typ=half), kind.ir)

    return operation(kind, ADDRESS)(named(f"load_f16_{kind.name}", body))


def _load_bf16(kind):
    def body(b, address):
        short, wide = ir.VectorType(I16, kind.n), ir.VectorType(I32, kind.n)
        bits = b.zext(b.load(at(b, address, short), align=1, typ=short), wide)
        return b.bitcast(b.shl(bits, const(wide, 16)), kind.ir)

    return operation(kind, ADDRESS)(named(f"load_bf16_{kind.name}", body))


def _store_half(kind):
    def body(b, address, x):
        half = ir.VectorType(F16, kind.n)
        b.store(b.fptrunc(x, half), at(b, address, half), align=1)

    return operation(types.void, ADDRESS, kind)(named(f"store_f16_{kind.name}", body))


load_f16_f32x8, load_f16_f32x16 = _load_half(f32x8), _load_half(f32x16)
load_bf16_f32x8, load_bf16_f32x16 = _load_bf16(f32x8), _load_bf16(f32x16)
store_f16_f32x8, store_f16_f32x16 = _store_half(f32x8), _store_half(f32x16)

# log2(e), and what its float32 leaves out.
_LOG2E = float(np.float32(math.log2(math.e)))
_LOG2E_REST = math.log2(math.e) - _LOG2E
# 2^f = 1 + f (c1 + f (c2 + ...)) for f between -1/2 and 1/2, of least relative error (2e-9).
_EXP2 = (
    1.5353362e-4,
    1.3398875e-3,
    9.6184369e-3,
    5.5503323674201965e-2,
    0.24022647738456726,
    0.6931471824645996,
    1.0,
)


def exp_value(b, x, kind, whole, *, down=False):
    """e^x for an LLVM vector, within 2e-7 of it: 2^(n + f), with the exponent added as bits. 0
    below -87, finite above 88; down: for x <= 0 only."""

    def c(value):
        return const(kind, value)

    def fma(p, q, r):
        return call(b, f"llvm.fma.v{kind.n}f32", kind.ir, p, q, r)

    too_small = b.fcmp_ordered("<", x, c(-87.0))
    if not down:
        x = b.select(b.fcmp_ordered(">", x, c(88.37626)), c(88.37626), x)  # NaN stays
    n = call(b, f"llvm.rint.v{kind.n}f32", kind.ir, b.fmul(x, c(_LOG2E)))
    f = fma(x, c(_LOG2E_REST), fma(x, c(_LOG2E), b.fneg(n)))
    y = c(_EXP2[0])
    for coefficient in _EXP2[1:]:
        y = fma(y, f, c(coefficient))
    bits = b.add(b.bitcast(y, whole.ir), b.shl(b.fptosi(n, whole.ir), const(whole, 23)))
    return b.select(too_small, c(0.0), b.bitcast(bits, kind.ir))


def _exp(kind, whole, down):
    name = f"exp_down_{kind.name}" if down else f"exp_{kind.name}"
    return operation(kind, kind)(named(name, lambda b, x: exp_value(b, x, kind, whole, down=down)))


exp_f32x8, exp_f32x16 = (_exp(*pair, False) for pair in _WIDE)
# The same for numbers that are not positive, as weights of a softmax are made of.
exp_down_f32x16 = _exp(*_WIDE[1], True)


def _store_narrow(kind, lane, name):
    """Store integer lanes as narrower ones (the values fit)."""

    def body(b, address, x):
        narrow = ir.VectorType(lane, kind.n)
        b.store(b.trunc(x, narrow), at(b, address, narrow), align=1)

    return operation(types.void, ADDRESS, kind)(named(name, body))


store_i8_i32x16 = _store_narrow(i32x16, ir.IntType(8), "store_i8_i32x16")
store_i16_i32x16 = _store_narrow(i32x16, I16, "store_i16_i32x16")
store_i16_i32x8 = _store_narrow(i32x8, I16, "store_i16_i32x8")


@operation(f32x8, types.float32, types.float32)
def halves_f32x8(b, low, high):
    """Lanes 0-3 = low, 4-7 = high."""
    pair = ir.Constant(ir.VectorType(low.type, 2), ir.Undefined)
    zero, one = (ir.Constant(ir.IntType(32), i) for i in (0, 1))
    pair = b.insert_element(b.insert_element(pair, low, zero), high, one)
    return b.shuffle_vector(pair, pair, lanes([0] * 4 + [1] * 4))


def _halves_times(name, count):
    """Lanes 0 and 1: the two numbers at address `pair` times the first half at `block` (or, with
    two, the second number times the second half). The others: 0."""

    def body(b, block, pair):
        kind = ir.VectorType(ir.HalfType(), 4)
        bits, none = ir.IntType(16 * count), ir.Constant(ir.IntType(64), 0)
        word = b.zext(b.load(at(b, block, bits), align=1, typ=bits), none.type)
        scales = b.fpext(b.bitcast(word, kind), ir.VectorType(ir.FloatType(), 4))
        if count == 1:
            scales = b.shuffle_vector(scales, scales, lanes([0] * 4))
        two = ir.IntType(64)
        factors = b.load(at(b, pair, two), align=1, typ=two)
        factors = b.bitcast(factors, ir.VectorType(ir.FloatType(), 2))
        factors = b.shuffle_vector(factors, const(factors.type, 0.0), lanes([0, 1, 2, 3]))
        return b.fmul(scales, factors)

    return operation(f32x4, types.int64, types.int64)(named(name, body))


half_times_f32x4, halves_times_f32x4 = (
    _halves_times("half_times_f32x4", 1),
    _halves_times("halves_times_f32x4", 2),
)


@operation(f32x16, f32x16)
def pair_sums_f32x16(b, x):
    """In both lanes of each two (2 i and 2 i + 1) their sum."""
    return b.fadd(x, b.shuffle_vector(x, x, lanes([i ^ 1 for i in range(16)])))


@operation(f32x16, f32x16)
def walsh_f32x16(b, x):
    """Lane i: the sum of all lanes j, negative where i and j share an odd number of bits."""
    for bit in (1, 2, 4, 8):
        other = b.shuffle_vector(x, x, lanes([i ^ bit for i in range(16)]))
        signs = ir.Constant(x.type, [-1.0 if i & bit else 1.0 for i in range(16)])
        x = call(b, "llvm.fma.v16f32", x.type, x, signs, other)
    return x


@operation(f32x8, f32x16)
def folded_f32x8(b, x):
    """Its lower half plus its upper."""
    return fold_once(b, x, b.fadd)


@operation(f32x8, f32x4)
def first_f32x8(b, x):
    """Lane 0 in every lane."""
    return b.shuffle_vector(x, x, lanes([0] * 8))


@operation(types.float32, f32x4)
def second_f32x4(b, x):
    return b.extract_element(x, ir.Constant(ir.IntType(32), 1))


def _select_positive(kind):
    """x where x > 0, else 0."""
    return operation(kind, kind)(
        named(f"positive_{kind.name}", lambda b, x: larger(b, x, const(kind, 0.0)))
    )


positive_f32x8, positive_f32x16 = _select_positive(f32x8), _select_positive(f32x16)


def _unary(kind, name, llvm_name):
    return operation(kind, kind)(
        named(
            f"{name}_{kind.name}",
            lambda b, x: call(b, f"llvm.{llvm_name}.v{kind.n}f32", kind.ir, x),
        )
    )


sqrt_f32x16 = _unary(f32x16, "sqrt", "sqrt")


@operation(f32x16, f32x16, f32x16)
def with_sign_f32x16(b, x, sign):
    """|x| with the sign of the other."""
    return call(b, "llvm.copysign.v16f32", f32x16.ir, x, sign)


@operation(f32x8, types.uint64)
def bytes_f32x8(b, word):
    """The eight unsigned bytes of a word as floats, the lowest first."""
    return b.uitofp(b.bitcast(word, ir.VectorType(ir.IntType(8), 8)), f32x8.ir)


def _load_bytes(name, convert):
    def body(b, address):
        kind = ir.VectorType(ir.IntType(8), 16)
        return getattr(b, convert)(b.load(at(b, address, kind), align=1, typ=kind), f32x16.ir)

    return operation(f32x16, ADDRESS)(named(name, body))


load_u8_f32x16, load_i8_f32x16 = (
    _load_bytes("load_u8_f32x16", "uitofp"),
    _load_bytes("load_i8_f32x16", "sitofp"),
)
