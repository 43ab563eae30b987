"""Sixteen interleaved rows of bytes times four columns, several steps at once.

    quads_n(panel, x)       n steps of four products for each row and column: four i32x16, from
                            64 n bytes of the panel and 16 n of the columns (four of each in turn).
                            For weights so small that the sums of n steps fit
                            (`levels.steps_allowed`).
    wide_quads_n(panel, x)  the same for weights up to 255

For AVX2 they are written out as machine instructions. There are just enough registers: eight for
the sums, two for the weights, one for the activation, one for the product. LLVM, left to itself,
moves all loads of the steps to the front, runs out of registers and puts them on the stack: the
whole product then takes 1.2 times as long.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llamapy.native import levels
from llamapy.native.simd import dots
from llamapy.native.simd.vectors import (
    I16,
    I32,
    I64,
    at,
    const,
    i8x64,
    i32x16,
    lanes,
    named,
    pattern_value,
    u8x64,
)

COLUMNS = 4
HALF = ir.VectorType(I32, 8)  # a register of AVX2, whatever it holds
ONES = ir.VectorType(I16, 16)


def _instructions(n_steps, wide):
    """Operands: $0 to $7 the sums of rows 0-7 and 8-15 of each column, $8 and $9 weights, $10 an
    activation, $11 a product, $12 the panel, $13 the columns, $14 ones.

    Sums of small weights are left in 16 bits; wide ones add each product in 32 bits."""
    out = []
    for step in range(n_steps):
        out += [f"vmovdqu {64 * step}($12), $8", f"vmovdqu {64 * step + 32}($12), $9"]
        for column in range(COLUMNS):
            out.append(f"vpbroadcastd {16 * step + 4 * column}($13), $10")
            for half in range(2):
                total, weights = f"${2 * column + half}", f"${8 + half}"
                product = total if step == 0 else "$11"
                out.append(f"vpmaddubsw $10, {weights}, {product}")
                if wide:
                    out.append(f"vpmaddwd $14, {product}, {product}")
                if step:
                    add = "vpaddd" if wide else "vpaddw"
                    out.append(f"{add} $11, {total}, {total}")
    return "\n".join(out)


def _written_out(b, n_steps, wide, addresses):
    made, taken = 2 * COLUMNS + 4, 2
    kind = ir.FunctionType(ir.LiteralStructType([HALF] * made), [I64] * taken + [ONES])
    constraints = ",".join(["=&x"] * made + ["r"] * taken + ["x", "~{memory}"])
    code = ir.InlineAsm(kind, _instructions(n_steps, wide), constraints)
    found = b.call(code, [*addresses, const(ONES, 1)])
    halves = [b.extract_value(found, i) for i in range(2 * COLUMNS)]
    order = lanes(range(16))
    whole = [b.shuffle_vector(*halves[i : i + 2], order) for i in range(0, 2 * COLUMNS, 2)]
    if wide:
        return whole
    return [dots.end_of_steps(b, b.bitcast(x, dots.RUNNING)) for x in whole]


def _step_by_step(b, n_steps, addresses):
    panel, columns = addresses
    sums = [const(dots.RUNNING, 0)] * COLUMNS
    for step in range(n_steps):
        place = b.add(panel, ir.Constant(I64, 64 * step))
        u = b.load(at(b, place, u8x64), align=1, typ=u8x64.ir)
        for i in range(COLUMNS):
            x = pattern_value(b, b.add(columns, ir.Constant(I64, 16 * step + 4 * i)), i8x64)
            sums[i] = dots.one_step(b, sums[i], u, x)
    return [dots.end_of_steps(b, x) for x in sums]


def _quads(name, n_steps, wide=False):
    def codegen(context, builder, sig, args):
        if levels.short_sums():
            made = _written_out(builder, n_steps, wide, args)
        else:
            made = _step_by_step(builder, n_steps, args)
        return context.make_tuple(builder, sig.return_type, made)

    signature = types.UniTuple(i32x16, COLUMNS)(types.int64, types.int64)

    def quads(typingctx, panel, x):
        return signature, codegen

    return intrinsic(named(name, quads))


quads_1, quads_2, quads_4, quads_8 = (_quads(f"quads_{n}", n) for n in (1, 2, 4, 8))
wide_quads_1, wide_quads_4, wide_quads_8 = (
    _quads(f"wide_quads_{n}", n, wide=True) for n in (1, 4, 8)
)
