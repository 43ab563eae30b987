"""Vector types for compiled code: values that live in registers and pass through ordinary
functions, with + - *.

LLVM splits a vector that is wider than the machine's registers, so the same kernel serves every
level: sixteen
float lanes are one register of AVX-512, two of AVX2, four of NEON.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
ADDRESS = types.int64


class BFloat(ir.Type):
    """LLVM's bfloat, which llvmlite does not know."""

    def _to_string(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, BFloat)

    def __hash__(self):
        return hash("bfloat")


BF16 = BFloat()


class Vec(types.Type):
    """A register of `n` lanes of one LLVM type."""

    def __init__(self, name, lane, n, size):
        self.ir, self.lane, self.n, self.size = ir.VectorType(lane, n), lane, n, size
        super().__init__(name)


@register_model(Vec)
class VecModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.ir)


def _vec(name, lane, n, size):
    return Vec(name, lane, n, size)


u8x16, i8x16 = _vec("u8x16", I8, 16, 1), _vec("i8x16", I8, 16, 1)
u8x32, i8x32 = _vec("u8x32", I8, 32, 1), _vec("i8x32", I8, 32, 1)
u8x64, i8x64 = _vec("u8x64", I8, 64, 1), _vec("i8x64", I8, 64, 1)
i16x16, i16x32 = _vec("i16x16", I16, 16, 2), _vec("i16x32", I16, 32, 2)
i32x8, i32x16 = _vec("i32x8", I32, 8, 4), _vec("i32x16", I32, 16, 4)
f32x8, f32x16 = _vec("f32x8", F32, 8, 4), _vec("f32x16", F32, 16, 4)
f32x4 = _vec("f32x4", F32, 4, 4)


def const(kind, value):
    """A vector of `kind` (a Vec or an LLVM vector type) with `value` in every lane."""
    kind = getattr(kind, "ir", kind)
    return ir.Constant(kind, [value] * kind.count)


def lanes(order):
    """A shuffle mask."""
    return ir.Constant(ir.VectorType(I32, len(order)), list(order))


def call(builder, name, result, *args, **more):
    """Call an LLVM intrinsic by name."""
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args, **more)


def at(builder, address, kind):
    return builder.inttoptr(address, getattr(kind, "ir", kind).as_pointer())


def operation(result, *params):
    """Make an intrinsic of `body(builder, *llvm_values) -> llvm_value` (no value for a result of
    void)."""

    def wrap(body):
        def codegen(context, builder, sig, args):
            value = body(builder, *args)
            return context.get_dummy_value() if value is None else value

        names = "".join(f", a{i}" for i in range(len(params)))
        space = {"sig": result(*params), "codegen": codegen}
        exec(f"def {body.__name__}(typingctx{names}):\n    return sig, codegen", space)
        made = intrinsic(space[body.__name__])
        made.__doc__ = body.__doc__
        return made

    return wrap


def named(name, body):
    body.__name__ = body.__qualname__ = name
    return body


def arithmetic(kind, ops):
    """Give a vector type its Python operators."""
    for python_op, emit in ops.items():
        _one_operator(kind, python_op, emit)


def _one_operator(kind, python_op, emit):
    @infer_global(python_op)
    class _Typing(ConcreteTemplate):
        cases = [signature(kind, kind, kind)]

    @lower_builtin(python_op, kind, kind)
    def _lower(context, builder, sig, args):
        return getattr(builder, emit)(*args)


_FLOAT = {
    operator.add: "fadd",
    operator.sub: "fsub",
    operator.mul: "fmul",
    operator.truediv: "fdiv",
}
_INT = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul",
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor",
}  # fmt: skip
for _kind in (f32x4, f32x8, f32x16):
    arithmetic(_kind, _FLOAT)
for _kind in (u8x16, i8x16, u8x32, i8x32, u8x64, i8x64, i16x16, i16x32, i32x8, i32x16):
    arithmetic(_kind, _INT)


def loader(kind, name):
    def body(b, address):
        return b.load(at(b, address, kind), align=1, typ=kind.ir)

    return operation(kind, ADDRESS)(named(name, body))


def storer(kind, name):
    def body(b, address, value):
        b.store(value, at(b, address, kind), align=1)

    return operation(types.void, ADDRESS, kind)(named(name, body))


load_u8x16, load_u8x32 = (loader(k, f"load_{k.name}") for k in (u8x16, u8x32))
load_i8x32, load_i8x64, load_i16x32 = (loader(k, f"load_{k.name}") for k in (i8x32, i8x64, i16x32))
load_i32x8, load_i32x16 = (loader(k, f"load_{k.name}") for k in (i32x8, i32x16))
load_f32x4, load_f32x8, load_f32x16 = (loader(k, f"load_{k.name}") for k in (f32x4, f32x8, f32x16))
store_i8x32, store_u8x32, store_u8x64 = (
    storer(k, f"store_{k.name}") for k in (i8x32, u8x32, u8x64)
)
store_i16x32, store_i32x8, store_i32x16 = (
    storer(k, f"store_{k.name}") for k in (i16x32, i32x8, i32x16)
)
store_f32x4, store_f32x8, store_f32x16 = (
    storer(k, f"store_{k.name}") for k in (f32x4, f32x8, f32x16)
)


def splat_value(b, value, count):
    """An LLVM vector with `value` in every lane."""
    kind = ir.VectorType(value.type, count)
    undefined = ir.Constant(kind, ir.Undefined)
    one = b.insert_element(undefined, value, ir.Constant(I32, 0))
    return b.shuffle_vector(one, undefined, ir.Constant(ir.VectorType(I32, count), [0] * count))


def _splat(kind, scalar, name):
    return operation(kind, scalar)(named(name, lambda b, value: splat_value(b, value, kind.n)))


splat_f32x4, splat_f32x8, splat_f32x16 = (
    _splat(f32x4, types.float32, "splat_f32x4"),
    _splat(f32x8, types.float32, "splat_f32x8"),
    _splat(f32x16, types.float32, "splat_f32x16"),
)
splat_i32x8, splat_i32x16 = (
    _splat(i32x8, types.int32, "splat_i32x8"),
    _splat(i32x16, types.int32, "splat_i32x16"),
)
splat_u8x32, splat_i8x32 = (
    _splat(u8x32, types.uint8, "splat_u8x32"),
    _splat(i8x32, types.int8, "splat_i8x32"),
)
splat_u8x16 = _splat(u8x16, types.uint8, "splat_u8x16")


def _zeros(kind, value, name):
    return operation(kind)(named(name, lambda b: const(kind, value)))


zeros_f32x4, zeros_f32x8, zeros_f32x16 = (
    _zeros(f32x4, 0.0, "zeros_f32x4"),
    _zeros(f32x8, 0.0, "zeros_f32x8"),
    _zeros(f32x16, 0.0, "zeros_f32x16"),
)
zeros_i32x8, zeros_i32x16 = _zeros(i32x8, 0, "zeros_i32x8"), _zeros(i32x16, 0, "zeros_i32x16")


def pattern_value(b, address, kind):
    """The 4 bytes at an address over the whole vector."""
    word = b.load(at(b, address, I32), align=1, typ=I32)
    return b.bitcast(splat_value(b, word, kind.n * kind.size // 4), kind.ir)


@operation(i16x32, ADDRESS)
def pair_i16x32(b, address):
    """Two numbers of 16 bits at an address over the whole vector."""
    return pattern_value(b, address, i16x32)


@operation(types.void, ADDRESS)
def prefetch(b, address):
    """Ask for the cache line at an address, which need not be readable."""
    where = at(b, address, I8)
    name = "llvm.prefetch.p0" if getattr(where.type, "is_opaque", False) else "llvm.prefetch.p0i8"
    kind = ir.FunctionType(ir.VoidType(), [where.type, I32, I32, I32])
    read, keep, data = ir.Constant(I32, 0), ir.Constant(I32, 3), ir.Constant(I32, 1)
    b.call(cgutils.get_or_insert_function(b.module, kind, name), [where, read, keep, data])


_WORDS = ((0, 8, 1, 9, 4, 12, 5, 13), (2, 10, 3, 11, 6, 14, 7, 15))
_PAIRS = ((0, 1, 8, 9, 4, 5, 12, 13), (2, 3, 10, 11, 6, 7, 14, 15))
_HALVES = ((0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15))


@operation(types.void, ADDRESS, types.int64, ADDRESS, types.int64)
def turn_u32x8(b, source, stride, to, to_stride):
    """Eight rows of eight 32-bit words, `stride` bytes apart, to eight columns, `to_stride`
    apart."""
    kind = ir.VectorType(I32, 8)

    def place(base, step, i):
        return at(b, b.add(base, b.mul(step, ir.Constant(I64, i))), kind)

    def both(x, y, orders):
        return [b.shuffle_vector(x, y, lanes(order)) for order in orders]

    x = [b.load(place(source, stride, i), align=1, typ=kind) for i in range(8)]
    x = [both(x[i], x[i + 1], _WORDS) for i in range(0, 8, 2)]
    x = [both(x[i][j], x[i + 1][j], _PAIRS) for i in (0, 2) for j in (0, 1)]
    x = [both(x[j][k], x[j + 2][k], _HALVES) for j in (0, 1) for k in (0, 1)]
    for half in (0, 1):
        for i in range(4):
            b.store(x[i][half], place(to, to_stride, 4 * half + i), align=1)
