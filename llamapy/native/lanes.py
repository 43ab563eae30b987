"""Eight numbers at a time, each going its own way: `f32x8`, `i32x8`, the `mask8` of a comparison.

For work that must be done in the order of a scalar loop (sums that may not be reordered): several
such loops run side by side, one a lane. Plain LLVM vectors: any processor runs them, with the
widest registers it has. `+ - * /` and comparisons are the usual operators; a lane gives the very
bits that scalar code would.
"""

import operator

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model

from llamapy.native.memory import F16, F32, I1, I8, I16, I32, I64, pointer

N = 8


class Lanes(types.Type):
    """N lanes of one LLVM type."""

    def __init__(self, name, lane):
        self.lane, self.ir = lane, ir.VectorType(lane, N)
        super().__init__(name)

    def __reduce__(self):
        return _named, (self.name,)


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.ir)


f32x8, i32x8, mask8 = Lanes("f32x8", F32), Lanes("i32x8", I32), Lanes("mask8", I1)


def _named(name):
    return {"f32x8": f32x8, "i32x8": i32x8, "mask8": mask8}[name]


def _constant(kind, value):
    return ir.Constant(kind.ir, [value] * N)


def _operator(op, result, kind, emit):
    @infer_global(op)
    class _Typing(ConcreteTemplate):
        cases = [signature(result, kind, kind)]

    @lower_builtin(op, kind, kind)
    def _lower(context, builder, sig, args):
        return emit(builder, *args)


def _method(name, *extra):
    return lambda builder, a, b: getattr(builder, name)(*extra, a, b)


for _op, _float, _int in [
    (operator.add, "fadd", "add"),
    (operator.sub, "fsub", "sub"),
    (operator.mul, "fmul", "mul"),
    (operator.truediv, "fdiv", None),
    (operator.and_, None, "and_"),
    (operator.or_, None, "or_"),
    (operator.lshift, None, "shl"),
    (operator.rshift, None, "lshr"),
]:
    if _float:
        _operator(_op, f32x8, f32x8, _method(_float))
    if _int:
        _operator(_op, i32x8, i32x8, _method(_int))
for _op, _name in [(operator.and_, "and_"), (operator.or_, "or_"), (operator.xor, "xor")]:
    _operator(_op, mask8, mask8, _method(_name))
for _op, _sign in [
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
]:
    _operator(_op, mask8, f32x8, _method("fcmp_ordered", _sign))
    _operator(_op, mask8, i32x8, _method("icmp_signed", _sign))


@infer_global(operator.neg)
class _Negation(ConcreteTemplate):
    cases = [signature(f32x8, f32x8)]


_operator(operator.ne, mask8, f32x8, _method("fcmp_unordered", "!="))


def _operation(name, result, *params):
    """An intrinsic of fixed types; the decorated body gets the builder and LLVM values."""

    def wrap(body):
        names = ", ".join(f"a{i}" for i in range(len(params)))
        space = {
            "sig": result(*params),
            "codegen": lambda context, builder, sig, args: body(builder, *args),
        }
        exec(f"def {name}(typingctx, {names}):\n    return sig, codegen", space)
        return intrinsic(space[name])

    return wrap


def _call(builder, name, result, *args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


def _splat(kind):
    def body(b, value):
        one = b.insert_element(ir.Constant(kind.ir, ir.Undefined), value, ir.Constant(I32, 0))
        order = ir.Constant(ir.VectorType(I32, N), [0] * N)
        return b.shuffle_vector(one, one, order)

    return body


splat = _operation("splat", f32x8, types.float32)(_splat(f32x8))
splat_i = _operation("splat_i", i32x8, types.int32)(_splat(i32x8))


@_operation("load", f32x8, types.int64, types.int64)
def load(b, base, index):
    """The 8 float32 from number `index` on."""
    at = b.bitcast(pointer(b, base, index, F32, 4), f32x8.ir.as_pointer())
    return b.load(at, align=1, typ=f32x8.ir)


@_operation("store", types.void, types.int64, types.int64, f32x8)
def store(b, base, index, value):
    """Put 8 float32 from number `index` on."""
    b.store(value, b.bitcast(pointer(b, base, index, F32, 4), f32x8.ir.as_pointer()), align=1)
    return ir.Constant(ir.LiteralStructType([]).as_pointer(), None)


@_operation("store_bytes", types.void, types.int64, types.int64, i32x8)
def store_bytes(b, base, index, value):
    """Put the low bytes of 8 numbers from byte `index` on."""
    kind = ir.VectorType(I8, N)
    at = b.bitcast(pointer(b, base, index, I8, 1), kind.as_pointer())
    b.store(b.trunc(value, kind), at, align=1)
    return ir.Constant(ir.LiteralStructType([]).as_pointer(), None)


@_operation("load_bytes", i32x8, types.int64, types.int64)
def load_bytes(b, base, index):
    """The 8 unsigned bytes from byte `index` on."""
    kind = ir.VectorType(I8, N)
    at = b.bitcast(pointer(b, base, index, I8, 1), kind.as_pointer())
    return b.zext(b.load(at, align=1, typ=kind), i32x8.ir)


@lower_builtin(operator.neg, f32x8)
def _negate(context, builder, sig, args):
    return builder.fneg(args[0])


@_operation("load_i", i32x8, types.int64, types.int64)
def load_i(b, base, index):
    """The 8 int32 from number `index` on."""
    at = b.bitcast(pointer(b, base, index, I32, 4), i32x8.ir.as_pointer())
    return b.load(at, align=1, typ=i32x8.ir)


@_operation("store_shorts", types.void, types.int64, types.int64, i32x8)
def store_shorts(b, base, index, value):
    """Put the low 16 bits of 8 numbers from 16-bit number `index` on."""
    kind = ir.VectorType(I16, N)
    at = b.bitcast(pointer(b, base, index, I16, 2), kind.as_pointer())
    b.store(b.trunc(value, kind), at, align=1)
    return ir.Constant(ir.LiteralStructType([]).as_pointer(), None)


@_operation("half_bits", i32x8, f32x8)
def half_bits(b, value):
    """The bits of the nearest halves (ties to even)."""
    half = b.bitcast(b.fptrunc(value, ir.VectorType(F16, N)), ir.VectorType(I16, N))
    return b.zext(half, i32x8.ir)


@_operation("absolute", f32x8, f32x8)
def absolute(b, value):
    return _call(b, "llvm.fabs.v8f32", f32x8.ir, value)


@_operation("root", f32x8, f32x8)
def root(b, value):
    return _call(b, "llvm.sqrt.v8f32", f32x8.ir, value)


@_operation("minimum", i32x8, i32x8, i32x8)
def minimum(b, x, y):
    return b.select(b.icmp_signed("<", x, y), x, y)


@_operation("maximum", i32x8, i32x8, i32x8)
def maximum(b, x, y):
    return b.select(b.icmp_signed(">", x, y), x, y)


@_operation("bits", i32x8, f32x8)
def bits(b, value):
    return b.bitcast(value, i32x8.ir)


@_operation("of_bits", f32x8, i32x8)
def of_bits(b, value):
    return b.bitcast(value, f32x8.ir)


@_operation("to_f32", f32x8, i32x8)
def to_f32(b, value):
    return b.sitofp(value, f32x8.ir)


@_operation("truncate", i32x8, f32x8)
def truncate(b, value):
    """Towards zero, as C converts."""
    return b.fptosi(value, i32x8.ir)


def _nearest(b, value):
    raised = b.bitcast(b.fadd(value, _constant(f32x8, 12582912.0)), i32x8.ir)
    kept = b.and_(raised, _constant(i32x8, 0x7FFFFF))
    return b.sub(kept, _constant(i32x8, 0x400000))


@_operation("nearest", i32x8, f32x8)
def nearest(b, value):
    """ggml's nearest_int: halves to even; beyond 2 ** 22 the same garbage as there."""
    return _nearest(b, value)


@_operation("bounded", i32x8, f32x8, types.int32, types.int32)
def bounded(b, value, least, most):
    """The `nearest` whole number, but not below `least` nor above `most`."""
    least, most = _splat(i32x8)(b, least), _splat(i32x8)(b, most)
    whole = _nearest(b, value)
    whole = b.select(b.icmp_signed(">", whole, least), whole, least)
    return b.select(b.icmp_signed("<", whole, most), whole, most)


@_operation("any_lane", types.boolean, mask8)
def any_lane(b, mask):
    return b.icmp_unsigned("!=", b.bitcast(mask, I8), ir.Constant(I8, 0))


def _across(sign):
    def body(b, value):
        for step in (4, 2, 1):
            order = ir.Constant(ir.VectorType(I32, N), [i ^ step for i in range(N)])
            other = b.shuffle_vector(value, value, order)
            value = b.select(b.fcmp_ordered(sign, value, other), value, other)
        return b.extract_element(value, ir.Constant(I32, 0))

    return body


highest = _operation("highest", types.float32, f32x8)(_across(">"))
lowest = _operation("lowest", types.float32, f32x8)(_across("<"))


@_operation("greater", f32x8, f32x8, f32x8)
def greater(b, x, y):
    """Lane by lane `x if x > y else y`."""
    return b.select(b.fcmp_ordered(">", x, y), x, y)


@_operation("lesser", f32x8, f32x8, f32x8)
def lesser(b, x, y):
    """Lane by lane `x if x < y else y`."""
    return b.select(b.fcmp_ordered("<", x, y), x, y)


@_operation("lane", types.float32, f32x8, types.int64)
def lane(b, value, index):
    return b.extract_element(value, index)


@intrinsic
def select(typingctx, mask, yes, no):
    """Lane by lane: `yes` where the mask is set, else `no`."""

    def codegen(context, builder, sig, args):
        return builder.select(*args)

    return yes(mask, yes, no), codegen


@_operation("load_halves", i32x8, types.int64, types.int64)
def load_halves(b, base, index):
    """The 8 unsigned 16-bit numbers from number `index` on."""
    kind = ir.VectorType(I16, N)
    at = b.bitcast(pointer(b, base, index, I16, 2), kind.as_pointer())
    return b.zext(b.load(at, align=1, typ=kind), i32x8.ir)


@_operation("mask_bits", types.uint8, mask8)
def mask_bits(b, mask):
    """Bit k is lane k."""
    return b.bitcast(mask, I8)


@_operation("first_lane", types.int64, mask8)
def first_lane(b, mask):
    """The lowest lane that is set; 8 if none is."""
    wide = b.zext(b.bitcast(mask, I8), I64)
    kind = ir.FunctionType(I64, [I64, I1])
    zeros = cgutils.get_or_insert_function(b.module, kind, "llvm.cttz.i64")
    return b.call(zeros, [b.or_(wide, ir.Constant(I64, 1 << N)), ir.Constant(I1, 1)])


@_operation("least", types.uint32, i32x8)
def least(b, value):
    """The least lane, as unsigned numbers."""
    return _call(b, "llvm.vector.reduce.umin.v8i32", I32, value)


@_operation("greatest", types.int32, i32x8)
def greatest(b, value):
    """The greatest lane, as signed numbers."""
    return _call(b, "llvm.vector.reduce.smax.v8i32", I32, value)


@_operation("numbers", i32x8)
def numbers(b):
    """The lanes' own numbers, 0 to 7."""
    return ir.Constant(i32x8.ir, list(range(N)))
