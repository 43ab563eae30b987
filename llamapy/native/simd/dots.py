"""Integer dot products, the operations that matter most: chosen by level, the same meaning
everywhere.

Narrow (32 bytes in, 8 lanes out), for one row at a time:
    dot_us(u, x)   lane i = sum over j < 4 of u[4i+j] * x[4i+j]; u unsigned (at most 127), x signed
    dot_ss(w, x)   the same with both signed (w from -127)

For one row in blocks of 256 whose scales are integers: `dot_scaled`.

Wide, for sixteen interleaved rows: `panel` takes steps of four products (64 bytes in) from here
where it does not write them out.
    pair_step(acc, w, x): 32-bit running sum over pairs of 16-bit numbers (64 bytes in, 16 lanes
    out), without a limit of that kind.
"""

from llvmlite import ir
from numba import types

from llamapy.native import levels
from llamapy.native.simd.vectors import (
    I8,
    I16,
    I32,
    at,
    call,
    const,
    i8x32,
    i16x16,
    i16x32,
    i32x8,
    i32x16,
    lanes,
    named,
    operation,
    u8x32,
)  # fmt: skip


def _vector(lane, n):
    return ir.VectorType(lane, n)


def _split(b, x):
    half = x.type.count // 2
    return (
        b.shuffle_vector(x, x, lanes(range(half))),
        b.shuffle_vector(x, x, lanes(range(half, 2 * half))),
    )


def _join(b, low, high):
    return b.shuffle_vector(low, high, lanes(range(2 * low.type.count)))


def _halves(b, operation_on_half, *operands):
    """Apply an instruction of half the width to both halves."""
    parts = [_split(b, x) for x in operands]
    return _join(
        b, operation_on_half(*[p[0] for p in parts]), operation_on_half(*[p[1] for p in parts])
    )


def pairs_u8s8(b, u, x):
    """Sums of neighbouring products as 16-bit lanes (saturating on x86)."""
    if levels.has("avx2"):
        out = _vector(I16, 16)
        if u.type.count == 64:
            return _halves(b, lambda p, q: call(b, "llvm.x86.avx2.pmadd.ub.sw", out, p, q), u, x)
        return call(b, "llvm.x86.avx2.pmadd.ub.sw", out, u, x)
    n = u.type.count
    wide = _vector(I16, n)
    product = b.mul(b.zext(u, wide), b.sext(x, wide))
    return _add_neighbours(b, product)


def pairs_i16(b, w, x):
    """Sums of neighbouring products of 16-bit lanes as 32-bit lanes."""
    if levels.has("avx2"):
        out = _vector(I32, 8)
        if w.type.count == 32:
            return _halves(b, lambda p, q: call(b, "llvm.x86.avx2.pmadd.wd", out, p, q), w, x)
        return call(b, "llvm.x86.avx2.pmadd.wd", out, w, x)
    wide = _vector(I32, w.type.count)
    return _add_neighbours(b, b.mul(b.sext(w, wide), b.sext(x, wide)))


def _add_neighbours(b, x):
    n = x.type.count
    return b.add(
        b.shuffle_vector(x, x, lanes(range(0, n, 2))), b.shuffle_vector(x, x, lanes(range(1, n, 2)))
    )


def _vnni(b, acc, u, x):
    bits = 8 * u.type.count
    return call(b, f"llvm.x86.avx512.vpdpbusd.{bits}", acc.type, acc, u, x)


def _quads(b, u, x, unsigned):
    """Plain vectors: sums of four products as 32-bit lanes."""
    wide = _vector(I16, u.type.count)
    product = b.mul(b.zext(u, wide) if unsigned else b.sext(u, wide), b.sext(x, wide))
    wider = b.sext(product, _vector(I32, u.type.count))
    return _add_neighbours(b, _add_neighbours(b, wider))


def _sdot(b, w, x):
    """NEON: four signed products a lane, in halves of 16 bytes."""
    if w.type.count > 16:
        return _halves(b, lambda p, q: _sdot(b, p, q), w, x)
    zero = const(_vector(I32, 4), 0)
    return call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", zero.type, zero, w, x)


@operation(i32x8, u8x32, i8x32)
def dot_us(b, u, x):
    if levels.has("avx512"):
        return _vnni(b, const(i32x8, 0), u, x)
    if levels.has("neon"):
        return _sdot(b, u, x)
    if levels.has("avx2"):
        return pairs_i16(b, pairs_u8s8(b, u, x), const(_vector(I16, 16), 1))
    return _quads(b, u, x, unsigned=True)


@operation(i32x8, i8x32, i8x32)
def dot_ss(b, w, x):
    if levels.has("avx2"):
        zero = const(w.type, 0)
        magnitude = b.select(b.icmp_signed("<", w, zero), b.sub(zero, w), w)
        signed = call(b, "llvm.x86.avx2.psign.b", w.type, x, w)
        if levels.has("avx512"):
            return _vnni(b, const(i32x8, 0), magnitude, signed)
        return pairs_i16(b, pairs_u8s8(b, magnitude, signed), const(_vector(I16, 16), 1))
    if levels.has("neon"):
        return _sdot(b, w, x)
    return _quads(b, w, x, unsigned=False)


def _hidden(b, x):
    """x, of which LLVM no longer knows where it comes from: it would take two instructions for each
    choice of lanes instead of the one that they are arranged for."""
    if not levels.has("avx2"):
        return x
    same = ir.FunctionType(x.type, [x.type])
    return b.call(ir.InlineAsm(same, "", "=x,0"), [x])


def _doubled(b, low, high, first):
    """Four lanes of eight, from `first` on, twice each: of one vector, then of the other."""
    order = lanes([first + i // 2 for i in range(8)] + [8 + first + i // 2 for i in range(8)])
    return _hidden(b, b.shuffle_vector(low, high, order))


def _scales(name, first):
    def body(b, small, address):
        short = _vector(I16, 8)
        scales = b.zext(b.bitcast(small, _vector(I8, 8)), short)
        scales = b.mul(scales, b.load(at(b, address, short), align=1, typ=short))
        return _doubled(b, scales, scales, first)

    return operation(i16x16, types.uint64, types.int64)(named(name, body))


def _half_scales(name, first):
    def body(b, address):
        small = b.load(at(b, address, _vector(I8, 16)), align=1, typ=_vector(I8, 16))
        apart = b.shuffle_vector(small, small, lanes([*range(0, 16, 2), *range(1, 16, 2)]))
        return _doubled(b, *_split(b, b.sext(apart, i16x16.ir)), first)

    return operation(i16x16, types.int64)(named(name, body))


# Scales of groups of 32 for `dot_scaled`, groups 0 to 3 and 4 to 7 of a block of 256: eight bytes
# times eight int16 at an address.
scales_0_i16x16, scales_4_i16x16 = _scales("scales_0_i16x16", 0), _scales("scales_4_i16x16", 4)
# The same for groups of 16, two at a time: sixteen signed bytes at an address.
half_scales_0_i16x16 = _half_scales("half_scales_0_i16x16", 0)
half_scales_4_i16x16 = _half_scales("half_scales_4_i16x16", 4)


def _dot_scaled(j):
    order = lanes([2 * j, 2 * j + 1] * 4 + [8 + 2 * j, 8 + 2 * j + 1] * 4)

    def body(b, u, address, scales):
        x = b.load(at(b, address, i8x32), align=1, typ=i8x32.ir)
        return pairs_i16(b, pairs_u8s8(b, u, x), b.shuffle_vector(scales, scales, order))

    return operation(i32x8, u8x32, types.int64, i16x16)(named(f"dot_scaled_{j}", body))


# Lane i = the sum of products 4 i ... 4 i + 3 with signed bytes at an address, two and two times
# one of four scales: a scale is within 16 bits, a product of two pairs with it within 31; u at
# most 127.
dot_scaled_0, dot_scaled_1, dot_scaled_2, dot_scaled_3 = (_dot_scaled(j) for j in range(4))


def one_step(b, acc, u, x):
    """A running sum with four products a lane more (64 bytes of each)."""
    if levels.has("avx512"):
        return _vnni(b, acc, u, x)
    if levels.has("neon"):
        return b.add(acc, _sdot(b, u, x))
    return b.add(acc, _quads(b, u, x, unsigned=True))


@operation(i32x16, i32x16, i16x32, i16x32)
def pair_step(b, acc, w, x):
    if levels.has("avx512"):
        whole = _vector(I32, 16)
        return call(
            b, "llvm.x86.avx512.vpdpwssd.512", whole, acc, b.bitcast(w, whole), b.bitcast(x, whole)
        )
    return b.add(acc, pairs_i16(b, w, x))


# ---- bytes and nibbles
# ----------------------------------------------------------------------------------------------


def _nibbles(name, count, packed, result):
    def low(b, x):
        return b.and_(x, const(x.type, 15))

    def high(b, x):
        wide = b.bitcast(x, _vector(I16, x.type.count // 2))
        return low(b, b.bitcast(b.lshr(wide, const(wide.type, 4)), x.type))

    return (
        operation(result, packed)(named(f"low_{name}", low)),
        operation(result, packed)(named(f"high_{name}", high)),
    )


low_nibbles, high_nibbles = _nibbles("nibbles", 32, u8x32, u8x32)


@operation(u8x32, types.int64)
def nibbles_u8x32(b, address):
    """16 packed bytes -> 32 values: the low halves, then the high halves."""
    kind = _vector(I8, 16)
    x = b.load(b.inttoptr(address, kind.as_pointer()), align=1, typ=kind)
    both = b.bitcast(_join(b, x, x), i32x8.ir)
    shifted = b.bitcast(b.lshr(both, ir.Constant(i32x8.ir, [0] * 4 + [4] * 4)), u8x32.ir)
    return b.and_(shifted, const(shifted.type, 15))


@operation(u8x32, i8x32)
def as_unsigned(b, x):
    return x


@operation(i8x32, u8x32)
def as_signed(b, x):
    return x


def _shift(name, emit, kind):
    def body(b, x, n):
        wide = _vector(I16, kind.n // 2)
        short = b.trunc(n, I16)
        from llamapy.native.simd.vectors import splat_value

        return b.bitcast(
            getattr(b, emit)(b.bitcast(x, wide), splat_value(b, short, wide.count)), kind.ir
        )

    return operation(kind, kind, types.int64)(named(name, body))


# Bytes are shifted as 16-bit lanes: mask the result, bits of the neighbour come in.
right_u8x32, left_u8x32 = _shift("right_u8x32", "lshr", u8x32), _shift("left_u8x32", "shl", u8x32)


@operation(i16x32, i8x32)
def widen_i16x32(b, x):
    """32 signed bytes as 16-bit lanes."""
    return b.sext(x, i16x32.ir)


@operation(u8x32, types.uint32)
def bits_u8x32(b, word):
    """Byte i is 255 where bit i of the word is set, else 0."""
    bits = b.bitcast(word, _vector(ir.IntType(1), 32))
    return b.sext(bits, u8x32.ir)


@operation(u8x32, types.int64, u8x32)
def lookup_u8x32(b, table, index):
    """Bytes of a table of 16 at an address, by numbers 0 to 15."""
    kind = _vector(I8, 16)
    low = b.load(b.inttoptr(table, kind.as_pointer()), align=1, typ=kind)
    if levels.has("avx2"):
        return call(b, "llvm.x86.avx2.pshuf.b", u8x32.ir, _join(b, low, low), index)
    if levels.has("neon"):
        return _halves(b, lambda i: call(b, "llvm.aarch64.neon.tbl1.v16i8", kind, low, i), index)
    out = ir.Constant(u8x32.ir, ir.Undefined)
    for i in range(32):
        at = b.zext(b.extract_element(index, ir.Constant(I32, i)), I32)
        out = b.insert_element(out, b.extract_element(low, at), ir.Constant(I32, i))
    return out
