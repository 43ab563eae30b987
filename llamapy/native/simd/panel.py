"""Sixteen interleaved rows of bytes times four columns, several steps at once.

    quad_steps[n](panel, x0, x1, x2, x3) -> four running sums (see `dots.dot_start`)

after n steps: what n times `dot_step` for each column gives, from 64 n bytes of the panel and 4 n
of each column.

For AVX2 it is written out as machine instructions. There are just enough registers: eight for the
sums, two for the weights, one for the activation, one for the product. LLVM, left to itself, moves
all loads of the steps to the front, runs out of registers and puts them on the stack: the whole
product then takes 1.2 times as long.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from llamapy.native import levels
from llamapy.native.simd import dots
from llamapy.native.simd.vectors import (
    I32,
    I64,
    at,
    i8x64,
    lanes,
    pattern_value,
    u8x64,
)

COLUMNS = 4
HALF = ir.VectorType(I32, 8)  # a register of AVX2, whatever it holds


def _instructions(n_steps):
    """Operands: $0 to $7 the sums of rows 0-7 and 8-15 of each column, $8 and $9 weights, $10 an
    activation, $11 a product, $12 the panel, $13 to $16 the columns."""
    out = []
    for step in range(n_steps):
        out += [f"vmovdqu {64 * step}($12), $8", f"vmovdqu {64 * step + 32}($12), $9"]
        for column in range(COLUMNS):
            out.append(f"vpbroadcastd {4 * step}(${13 + column}), $10")
            for half in range(2):
                total, weights = f"${2 * column + half}", f"${8 + half}"
                if step == 0:
                    out.append(f"vpmaddubsw $10, {weights}, {total}")
                else:
                    out += [f"vpmaddubsw $10, {weights}, $11", f"vpaddw $11, {total}, {total}"]
    return "\n".join(out)


def _written_out(b, n_steps, addresses):
    made, taken = 2 * COLUMNS + 4, 1 + COLUMNS
    kind = ir.FunctionType(ir.LiteralStructType([HALF] * made), [I64] * taken)
    constraints = ",".join(["=&x"] * made + ["r"] * taken + ["~{memory}"])
    found = b.call(ir.InlineAsm(kind, _instructions(n_steps), constraints), addresses)
    halves = [b.extract_value(found, i) for i in range(2 * COLUMNS)]
    order = lanes(range(16))
    whole = [b.shuffle_vector(*halves[i : i + 2], order) for i in range(0, 2 * COLUMNS, 2)]
    return [b.bitcast(x, dots.running.ir) for x in whole]


def _step_by_step(b, n_steps, addresses):
    panel, *columns = addresses
    sums = [ir.Constant(dots.running.ir, [0] * dots.running.n)] * COLUMNS
    for step in range(n_steps):
        place = b.add(panel, ir.Constant(I64, 64 * step))
        u = b.load(at(b, place, u8x64), align=1, typ=u8x64.ir)
        for i, column in enumerate(columns):
            x = pattern_value(b, b.add(column, ir.Constant(I64, 4 * step)), i8x64)
            sums[i] = dots.dot_step_value(b, sums[i], u, x)
    return sums


def _quad_steps(n_steps):
    def codegen(context, builder, sig, args):
        make = _written_out if levels.short_sums() else _step_by_step
        return context.make_tuple(builder, sig.return_type, make(builder, n_steps, args))

    signature = types.UniTuple(dots.running, COLUMNS)(*[types.int64] * (1 + COLUMNS))

    @intrinsic
    def quads(typingctx, panel, x0, x1, x2, x3):
        return signature, codegen

    return quads


# By the number of steps, which must not exceed `levels.steps_allowed`.
quad_steps = {n: _quad_steps(n) for n in (1, 2, 4, 8)}
quads_1, quads_2, quads_4, quads_8 = quad_steps.values()
