"""Loads and stores by address, for compiled code: `mem.f32(base, i)` is the i-th float32 from
`base`.

`base` is an integer address, `i` counts elements (so that LLVM sees a pointer and an index, and
can vectorize).
Nothing is checked: whoever makes the addresses has checked them.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()


def pointer(builder, base, index, kind, size):
    """base + index * size as a pointer to `kind`."""
    raw = builder.inttoptr(base, I8.as_pointer())
    return builder.gep(builder.bitcast(raw, kind.as_pointer()), [index], source_etype=kind)


def _loader(name, kind, size, result, convert=None):
    def codegen(context, builder, sig, args):
        value = builder.load(pointer(builder, args[0], args[1], kind, size), align=1, typ=kind)
        return value if convert is None else convert(builder, value)

    def typer(typingctx, base, index):
        return result(types.int64, types.int64), codegen

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


def _storer(name, kind, size, operand, convert=None):
    def codegen(context, builder, sig, args):
        value = args[2] if convert is None else convert(builder, args[2])
        builder.store(value, pointer(builder, args[0], args[1], kind, size), align=1)
        return context.get_dummy_value()

    def typer(typingctx, base, index, value):
        return types.void(types.int64, types.int64, operand), codegen

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


def _half(builder, value):
    return builder.fpext(value, F32)


def _to_half(builder, value):
    return builder.fptrunc(value, F16)


def _bf16(builder, value):
    return builder.bitcast(builder.shl(builder.zext(value, I32), ir.Constant(I32, 16)), F32)


u8 = _loader("u8", I8, 1, types.uint8)
i8 = _loader("i8", I8, 1, types.int8)
u16 = _loader("u16", I16, 2, types.uint16)
i16 = _loader("i16", I16, 2, types.int16)
u32 = _loader("u32", I32, 4, types.uint32)
i32 = _loader("i32", I32, 4, types.int32)
u64 = _loader("u64", I64, 8, types.uint64)
i64 = _loader("i64", I64, 8, types.int64)
f32 = _loader("f32", F32, 4, types.float32)
f64 = _loader("f64", F64, 8, types.float64)
f16 = _loader("f16", F16, 2, types.float32, _half)
bf16 = _loader("bf16", I16, 2, types.float32, _bf16)

put_u8 = _storer("put_u8", I8, 1, types.uint8)
put_i8 = _storer("put_i8", I8, 1, types.int8)
put_u16 = _storer("put_u16", I16, 2, types.uint16)
put_i16 = _storer("put_i16", I16, 2, types.int16)
put_u32 = _storer("put_u32", I32, 4, types.uint32)
put_i32 = _storer("put_i32", I32, 4, types.int32)
put_u64 = _storer("put_u64", I64, 8, types.uint64)
put_i64 = _storer("put_i64", I64, 8, types.int64)
put_f32 = _storer("put_f32", F32, 4, types.float32)
put_f64 = _storer("put_f64", F64, 8, types.float64)
put_f16 = _storer("put_f16", F16, 2, types.float32, _to_half)


def _caster(name, source, target, argument, result):
    def typer(typingctx, value):
        return result(argument), lambda context, builder, sig, args: builder.bitcast(
            args[0], target
        )

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


bits_of_f32 = _caster("bits_of_f32", F32, I32, types.float32, types.uint32)
f32_of_bits = _caster("f32_of_bits", I32, F32, types.uint32, types.float32)
bits_of_f64 = _caster("bits_of_f64", F64, I64, types.float64, types.uint64)
f64_of_bits = _caster("f64_of_bits", I64, F64, types.uint64, types.float64)


@intrinsic
def half_to_f32(typingctx, bits):
    """The float32 value of a half given as its 16 bits."""

    def codegen(context, builder, sig, args):
        return builder.fpext(builder.bitcast(args[0], F16), F32)

    return types.float32(types.uint16), codegen


@intrinsic
def f32_to_half(typingctx, value):
    """The 16 bits of the nearest half (ties to even)."""

    def codegen(context, builder, sig, args):
        return builder.bitcast(builder.fptrunc(args[0], F16), I16)

    return types.uint16(types.float32), codegen


def _copy_like(name, llvm_name):
    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I8.as_pointer(), I64, I1])
        function = cgutils.get_or_insert_function(builder.module, kind, llvm_name)
        to, source = (builder.inttoptr(a, I8.as_pointer()) for a in args[:2])
        builder.call(function, [to, source, args[2], ir.Constant(I1, 0)])
        return context.get_dummy_value()

    def typer(typingctx, to, source, n_bytes):
        return types.void(types.int64, types.int64, types.int64), codegen

    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)


copy = _copy_like("copy", "llvm.memcpy.p0.p0.i64")


@intrinsic(prefer_literal=True)
def local(typingctx, n_bytes):
    """Address of n_bytes (a constant) of the stack, 64-byte aligned, until the function returns."""
    if not isinstance(n_bytes, types.IntegerLiteral):
        return None
    kind = ir.ArrayType(I8, n_bytes.literal_value)

    def codegen(context, builder, sig, args):
        place = cgutils.alloca_once(builder, kind)
        place.align = 64
        return builder.ptrtoint(place, I64)

    return types.int64(n_bytes), codegen


def word_field(base):
    """f(address, i): the 64-bit word base + i after an address."""
    return _reader(
        "word", lambda b, args: b.add(args[1], ir.Constant(I64, base)), 2, types.int64, I64
    )


def double_field(base):
    """f(address, i): word base + i as a float64."""
    return _reader(
        "double", lambda b, args: b.add(args[1], ir.Constant(I64, base)), 2, types.float64, F64
    )


def single_field(base):
    """f(address, i): word base + i, which holds a float64, as a float32."""
    return _reader(
        "single", lambda b, args: b.add(args[1], ir.Constant(I64, base)), 2, types.float32, F64,
        lambda b, value: b.fptrunc(value, F32),
    )  # fmt: skip


def group_field(base, stride):
    """f(address, t, i): word base + stride * t + i, for groups of `stride` words."""

    def index(b, args):
        return b.add(
            b.add(b.mul(args[1], ir.Constant(I64, stride)), args[2]), ir.Constant(I64, base)
        )

    return _reader("group", index, 3, types.int64, I64)


def _reader(name, index, n_args, result, kind, convert=None):
    def codegen(context, builder, sig, args):
        at = pointer(builder, args[0], index(builder, args), kind, 8)
        value = builder.load(at, align=8, typ=kind)
        return value if convert is None else convert(builder, value)

    def two(typingctx, address, i):
        return result(types.int64, types.int64), codegen

    def three(typingctx, address, t, i):
        return result(types.int64, types.int64, types.int64), codegen

    typer = three if n_args == 3 else two
    typer.__name__ = typer.__qualname__ = name
    return intrinsic(typer)
