"""mul_mat with few columns (decode): integer dots straight on the blocks, a weight row at a time,
or two for one column (see `dot_pairs`).

Rows of the activations have been quantized to 8 bits once for all threads (and for all products
that share them).
A block is unpacked into registers and first-level cache, and serves every column before the next
one is touched.
"""

from __future__ import annotations

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import dot_pairs, dots
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk, rows_of_chunk
from llamapy.graph.tensor import Tensor
from llamapy.quants import codec

OPS = ("mul_mat",)
PRIORITY = 0


@kernel
def mul_mat_rows(node, ith, nth, sync, w, b):
    k, n, m = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 2, 1)
    x_size, tables = rec.param(node, 0), rec.param(node, 1)
    scratch, x_rows = rec.private(node, ith), rec.shared(node)
    size = rows_of_chunk(n, nth)
    per_plane = (n + size - 1) // size
    n_chunks = per_plane * rec.ne(node, 2, 2) * rec.ne(node, 2, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        plane, first = chunk // per_plane, chunk % per_plane * size
        i2, i3 = plane % rec.ne(node, 2, 2), plane // rec.ne(node, 2, 2)
        rows = rec.data(node, 1) + i2 * rec.ne(node, 1, 2) // rec.ne(node, 2, 2) * rec.nb(
            node, 1, 2
        )
        rows += i3 * rec.ne(node, 1, 3) // rec.ne(node, 2, 3) * rec.nb(node, 1, 3)
        out = rec.data(node, 0) + i2 * rec.nb(node, 0, 2) + i3 * rec.nb(node, 0, 3)
        x, last, stride = x_rows + plane * m * x_size, min(first + size, n), rec.nb(node, 1, 1)
        if m == 1:
            dot_pairs.products(w, rows, stride, x, k, scratch, tables, out, first, last)
        else:
            for r in range(first, last):
                row = rows + r * stride
                dots.dot_columns(
                    w, row, x, x_size, m, k, scratch, tables, out, rec.nb(node, 0, 1), r
                )
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x = node.src
    if (
        w.kind.unpack is None
        or w.kind.n_values > 256
        or not w.contiguous_rows
        or x.kind.name != "f32"
    ):
        return None
    step = act.quantize_step(x, 1)
    params = (act.row_bytes(x.ne[0], 1), codec.tables_address(w.kind))
    product = Step(
        mul_mat_rows,
        (node, w, x),
        params,
        (w.kind.name, ""),
        step.shared,
        dots.row_scratch(x.ne[0]),
        takes=step.leaves,
    )
    return [step, product]
