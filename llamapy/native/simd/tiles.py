"""AMX tiles: eight registers of 16 rows of 64 bytes, and products of bf16 pairs in float32.

Tiles 0-3 hold results, 4 and 5 rows of activations, 6 and 7 panels of weights. Each operation
takes `regs`, the address
of 8 KiB: the processor has registers of its own and ignores it, the emulation keeps the tiles
there.
"""

from llvmlite import ir
from numba import njit, types

from llamapy.native import levels
from llamapy.native import memory as mem
from llamapy.native.simd.vectors import (
    ADDRESS,
    I8,
    I16,
    I32,
    I64,
    at,
    call,
    const,
    f32x16,
    named,
    operation,
)  # fmt: skip

TILE = 1024  # bytes


def _byte(value):
    return ir.Constant(I8, value)


def _pointer(b, address):
    return b.inttoptr(address, I8.as_pointer())


@njit
def _copy_rows(to, to_stride, source, stride):
    for r in range(16):
        mem.copy(to + r * to_stride, source + r * stride, 64)


@njit
def _clear(tile):
    for i in range(256):
        mem.put_u32(tile, i, types.uint32(0))


@njit
def _multiply(c, a, b):
    """c[i, j] += sum over p of a[i, 2p] b[p, 2j] + a[i, 2p+1] b[p, 2j+1]."""
    for i in range(16):
        for j in range(16):
            total = mem.f32(c, 16 * i + j)
            for p in range(16):
                total += mem.bf16(a, 32 * i + 2 * p) * mem.bf16(b, 32 * p + 2 * j)
                total += mem.bf16(a, 32 * i + 2 * p + 1) * mem.bf16(b, 32 * p + 2 * j + 1)
            mem.put_f32(c, 16 * i + j, total)


def _zero(t):
    if not levels.has("amx"):
        return njit(named(f"tile_zero_{t}", lambda regs: _clear(regs + TILE * t)))

    def body(b, regs):
        call(b, "llvm.x86.tilezero", ir.VoidType(), _byte(t))

    return operation(types.void, ADDRESS)(named(f"tile_zero_{t}", body))


def _load(t):
    if not levels.has("amx"):
        return njit(
            named(
                f"tile_load_{t}",
                lambda regs, source, stride: _copy_rows(regs + TILE * t, 64, source, stride),
            )
        )

    def body(b, regs, source, stride):
        call(b, "llvm.x86.tileloadd64", ir.VoidType(), _byte(t), _pointer(b, source), stride)

    return operation(types.void, ADDRESS, ADDRESS, types.int64)(named(f"tile_load_{t}", body))


def _store(t):
    if not levels.has("amx"):
        return njit(
            named(
                f"tile_store_{t}",
                lambda regs, to, stride: _copy_rows(to, stride, regs + TILE * t, 64),
            )
        )

    def body(b, regs, to, stride):
        call(b, "llvm.x86.tilestored64", ir.VoidType(), _byte(t), _pointer(b, to), stride)

    return operation(types.void, ADDRESS, ADDRESS, types.int64)(named(f"tile_store_{t}", body))


def _dp(c, x, w):
    if not levels.has("amx"):
        return njit(
            named(
                f"tile_dp_{c}",
                lambda regs: _multiply(regs + TILE * c, regs + TILE * x, regs + TILE * w),
            )
        )

    def body(b, regs):
        call(b, "llvm.x86.tdpbf16ps", ir.VoidType(), _byte(c), _byte(x), _byte(w))

    return operation(types.void, ADDRESS)(named(f"tile_dp_{c}", body))


@operation(types.void, ADDRESS)
def tile_config(b, address):
    """Set up the tiles of this thread from 64 bytes of configuration."""
    if levels.has("amx"):
        call(b, "llvm.x86.ldtilecfg", ir.VoidType(), _pointer(b, address))


@operation(types.void)
def tile_release(b):
    if levels.has("amx"):
        call(b, "llvm.x86.tilerelease", ir.VoidType())


tile_zero_0, tile_zero_1, tile_zero_2, tile_zero_3 = (_zero(t) for t in range(4))
tile_load_4, tile_load_5, tile_load_6, tile_load_7 = (_load(t) for t in range(4, 8))
tile_store_0, tile_store_1, tile_store_2, tile_store_3 = (_store(t) for t in range(4))
tile_dp_0, tile_dp_1 = _dp(0, 4, 6), _dp(1, 4, 7)
tile_dp_2, tile_dp_3 = _dp(2, 5, 6), _dp(3, 5, 7)


@operation(types.void, ADDRESS, f32x16)
def store_bf16_f32x16(b, address, x):
    """Sixteen floats as bf16: nearest, ties to even; NaN stays NaN."""
    wide, narrow = ir.VectorType(I32, 16), ir.VectorType(I16, 16)
    bits = b.bitcast(x, wide)
    odd = b.and_(b.lshr(bits, const(wide, 16)), const(wide, 1))
    rounded = b.add(b.add(bits, const(wide, 0x7FFF)), odd)
    quiet = b.or_(bits, const(wide, 1 << 22))
    rounded = b.select(b.fcmp_unordered("uno", x, x), quiet, rounded)
    b.store(b.trunc(b.lshr(rounded, const(wide, 16)), narrow), at(b, address, narrow), align=1)


_ = I64
