"""get_rows: rows of a table of any type as float32; a number outside the table gives NaN, never a
stray read."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import mem
from llamapy.quants import codec

OPS = ("get_rows",)


@kernel
def get_rows(node, ith, nth, sync, w, b):
    n, scratch = rec.ne(node, 0, 0), rec.private(node, ith)
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        i1, rest = r % rec.ne(node, 0, 1), r // rec.ne(node, 0, 1)
        i2, i3 = rest % rec.ne(node, 0, 2), rest // rec.ne(node, 0, 2)
        ids = (
            rec.data(node, 2)
            + i1 * rec.nb(node, 2, 0)
            + i2 * rec.nb(node, 2, 1)
            + i3 * rec.nb(node, 2, 2)
        )
        wanted, y = np.int64(mem.i32(ids, 0)), rec.row_address(node, 0, r)
        if wanted < 0 or wanted >= rec.ne(node, 1, 1):
            for i in range(n):
                mem.put_f32(y, i, np.float32(np.nan))
        else:
            row = (
                rec.data(node, 1)
                + wanted * rec.nb(node, 1, 1)
                + i2 * rec.nb(node, 1, 2)
                + i3 * rec.nb(node, 1, 3)
            )
            if rec.nb(node, 1, 0) == values.n_bytes(w):
                values.row_to_f32(w, row, y, n, scratch, rec.param(node, 0))
            else:
                for i in range(n):
                    mem.put_f32(y, i, values.load_1(w, row + i * rec.nb(node, 1, 0), 0))


@kernel
def get_rows_i32(node, ith, nth, sync, a, b):
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        i1, rest = r % rec.ne(node, 0, 1), r // rec.ne(node, 0, 1)
        i2, i3 = rest % rec.ne(node, 0, 2), rest // rec.ne(node, 0, 2)
        ids = (
            rec.data(node, 2)
            + i1 * rec.nb(node, 2, 0)
            + i2 * rec.nb(node, 2, 1)
            + i3 * rec.nb(node, 2, 2)
        )
        wanted, y = np.int64(mem.i32(ids, 0)), rec.row_address(node, 0, r)
        row = (
            rec.data(node, 1)
            + wanted * rec.nb(node, 1, 1)
            + i2 * rec.nb(node, 1, 2)
            + i3 * rec.nb(node, 1, 3)
        )
        for i in range(rec.ne(node, 0, 0)):
            inside = 0 <= wanted < rec.ne(node, 1, 1)
            mem.put_i32(y, i, mem.i32(row + i * rec.nb(node, 1, 0), 0) if inside else np.int32(-1))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    table, ids = node.src
    if table.kind.name == "i32":
        return [Step(get_rows_i32, (node, table, ids))]
    if table.kind.name not in values.PLAIN and (
        table.kind.unpack is None or not table.contiguous_rows
    ):
        return None
    params = (codec.tables_address(table.kind),)
    return [
        Step(get_rows, (node, table, ids), params, (table.kind.name, ""), private=values.SCRATCH)
    ]
