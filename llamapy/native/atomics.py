"""Atomic operations on 64-bit words in memory, giving way to other threads, and the time."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

I32, I64 = ir.IntType(32), ir.IntType(64)


def _at(builder, address):
    return builder.inttoptr(address, I64.as_pointer())


@intrinsic
def add(typingctx, address, value):
    """Add to the word at `address`; the word's value before."""

    def codegen(context, builder, sig, args):
        return builder.atomic_rmw("add", _at(builder, args[0]), args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load(typingctx, address):
    def codegen(context, builder, sig, args):
        return builder.load_atomic(_at(builder, args[0]), "acquire", 8, typ=I64)

    return types.int64(types.int64), codegen


@intrinsic
def store(typingctx, address, value):
    def codegen(context, builder, sig, args):
        builder.store_atomic(args[1], _at(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def give_way(typingctx):
    """Let another thread run on this core (sched_yield; where there is none, nothing)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(I32, [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def clock(typingctx, which):
    """Nanoseconds of the system's clock `which` (time.CLOCK_MONOTONIC)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(I32, [I32, I64.as_pointer()])
        read = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        pair = cgutils.alloca_once(builder, I64, size=2)  # seconds, nanoseconds
        builder.call(read, [builder.trunc(args[0], I32), pair])
        seconds, rest = (builder.load(builder.gep(pair, [I32(i)])) for i in (0, 1))
        return builder.add(builder.mul(seconds, I64(10**9)), rest)

    return types.int64(types.int64), codegen


@intrinsic
def call_kernel(typingctx, function, node, ith, nth, sync):
    """Call the kernel at address `function`; its two phantom arguments are zeros."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [I64] * 6)
        zero = ir.Constant(I64, 0)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [*args[1:], zero, zero])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), codegen
