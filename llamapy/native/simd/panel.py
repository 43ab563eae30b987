"""Sixteen interleaved rows of bytes times four columns, several steps at once.

    quads_n(panel, x, s, d, out)    n steps of four products for each row and column, from 64 n
                                    bytes of the panel and 16 n of the columns (four of each in
                                    turn), times the scales of sixteen rows (at s) and of four
                                    columns (at d), are added to float32 out[4, 16].
                                    For weights so small that the sums of n steps fit 16 bits
                                    where they are held so (`levels.steps_allowed`; neighbours
                                    among the columns' bytes: `levels.PAIR_LIMIT`).
    wide_quads_n(...)               the same for weights up to 255

Scales of rows are float32, but where sums are short int16, twice in 32 bits: multiplied with the
sums as pairs are added, they cost nothing. Within 32767, and within 4095 for wide weights.

For AVX2 steps are written out as machine instructions. There are just enough registers: eight for
the sums, two for the weights, one for the activation, one for the product, and two for wide scales.
LLVM, left to itself, moves all loads of the steps to the front, runs out of registers and puts them
on the stack: the whole product then takes 1.2 times as long.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llamapy.native import levels
from llamapy.native.simd import dots
from llamapy.native.simd.vectors import (
    F32,
    I32,
    I64,
    at,
    call,
    const,
    f32x16,
    i8x64,
    i32x16,
    named,
    operation,
    pattern_value,
    splat_value,
    u8x64,
)

COLUMNS = 4
HALF = ir.VectorType(I32, 8)  # a register of AVX2, whatever it holds


def _instructions(n_steps, wide):
    """Operands: $0 to $7 the sums of rows 0-7 and 8-15 of each column, $8 and $9 weights, $10 an
    activation, $11 a product, $12 and $13 scales of rows; addresses: $14 the panel, $15 the
    columns, $16 and $17 scales, $18 what is added to.

    Sums of small weights are left in 16 bits; wide ones add each scaled product in 32 bits."""
    out = [f"vmovdqu {32 * half}($16), ${12 + half}" for half in (0, 1)] if wide else []
    for step in range(n_steps):
        out += [f"vmovdqu {64 * step}($14), $8", f"vmovdqu {64 * step + 32}($14), $9"]
        for column in range(COLUMNS):
            out.append(f"vpbroadcastd {16 * step + 4 * column}($15), $10")
            for half in range(2):
                total, weights = f"${2 * column + half}", f"${8 + half}"
                product = total if step == 0 else "$11"
                out.append(f"vpmaddubsw $10, {weights}, {product}")
                if wide:
                    out.append(f"vpmaddwd ${12 + half}, {product}, {product}")
                if step:
                    add = "vpaddd" if wide else "vpaddw"
                    out.append(f"{add} $11, {total}, {total}")
    if not wide:
        out += [f"vmovdqu {32 * half}($16), ${8 + half}" for half in (0, 1)]
    for column in range(COLUMNS):
        out.append(f"vbroadcastss {4 * column}($17), $10")
        for half in range(2):
            total, to = f"${2 * column + half}", f"{64 * column + 32 * half}($18)"
            if not wide:
                out.append(f"vpmaddwd ${8 + half}, {total}, {total}")
            out += [f"vcvtdq2ps {total}, {total}", f"vfmadd213ps {to}, $10, {total}"]
            out.append(f"vmovups {total}, {to}")
    return "\n".join(out)


def _written_out(b, n_steps, wide, addresses):
    made = 2 * COLUMNS + 6
    kind = ir.FunctionType(ir.LiteralStructType([HALF] * made), [I64] * len(addresses))
    constraints = ",".join(["=&x"] * made + ["r"] * len(addresses) + ["~{memory}"])
    b.call(ir.InlineAsm(kind, _instructions(n_steps, wide), constraints, True), addresses)


def _step_by_step(b, n_steps, addresses):
    panel, columns, s, d, out = addresses
    sums = [const(i32x16, 0)] * COLUMNS
    for step in range(n_steps):
        place = b.add(panel, ir.Constant(I64, 64 * step))
        u = b.load(at(b, place, u8x64), align=1, typ=u8x64.ir)
        for i in range(COLUMNS):
            x = pattern_value(b, b.add(columns, ir.Constant(I64, 16 * step + 4 * i)), i8x64)
            sums[i] = dots.one_step(b, sums[i], u, x)
    scales = b.load(at(b, s, f32x16), align=1, typ=f32x16.ir)
    for i, total in enumerate(sums):
        own = b.load(at(b, b.add(d, ir.Constant(I64, 4 * i)), F32), align=1, typ=F32)
        place = at(b, b.add(out, ir.Constant(I64, 64 * i)), f32x16)
        scaled = b.fmul(scales, splat_value(b, own, 16))
        known = b.load(place, align=1, typ=f32x16.ir)
        more = b.sitofp(total, f32x16.ir)
        b.store(call(b, "llvm.fma.v16f32", f32x16.ir, more, scaled, known), place, align=1)


def _quads(name, n_steps, wide=False):
    def codegen(context, builder, sig, args):
        if levels.short_sums():
            _written_out(builder, n_steps, wide, args)
        else:
            _step_by_step(builder, n_steps, args)
        return context.get_dummy_value()

    signature = types.void(*[types.int64] * 5)

    def quads(typingctx, panel, x, s, d, out):
        return signature, codegen

    return intrinsic(named(name, quads))


quads_1, quads_2, quads_4, quads_8 = (_quads(f"quads_{n}", n) for n in (1, 2, 4, 8))
wide_quads_1, wide_quads_4, wide_quads_8 = (
    _quads(f"wide_quads_{n}", n, wide=True) for n in (1, 4, 8)
)


@operation(i32x16, i32x16)
def twice_i32x16(b, x):
    """The lower 16 bits of each lane in both halves of it."""
    low = b.and_(x, const(i32x16, 0xFFFF))
    return b.or_(low, b.shl(low, const(i32x16, 16)))
