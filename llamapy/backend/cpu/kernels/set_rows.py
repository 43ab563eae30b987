"""set_rows: rows of float32 into a table of any type that can be encoded; numbers outside the
table are left out."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import mem
from llamapy.quants import codec

OPS = ("set_rows",)


@kernel
def set_rows(node, ith, nth, sync, a, w):
    """Parameter 0: tables of the type; 1: 1 if the numbers have 64 bits."""
    n, flat = rec.ne(node, 2, 0), rec.private(node, ith)
    start, end = block_of(rec.n_rows(node, 2), ith, nth)
    for r in range(start, end):
        i1, rest = r % rec.ne(node, 2, 1), r // rec.ne(node, 2, 1)
        i2, i3 = rest % rec.ne(node, 2, 2), rest // rec.ne(node, 2, 2)
        at = rec.data(node, 3) + i1 * rec.nb(node, 3, 0)
        at += i2 % rec.ne(node, 3, 1) * rec.nb(node, 3, 1) + i3 % rec.ne(node, 3, 2) * rec.nb(
            node, 3, 2
        )
        wanted = mem.i64(at, 0) if rec.param(node, 1) == 1 else np.int64(mem.i32(at, 0))
        if wanted < 0 or wanted >= rec.ne(node, 0, 1):
            continue
        x = rec.row_address(node, 2, r)
        y = (
            rec.data(node, 0)
            + wanted * rec.nb(node, 0, 1)
            + i2 * rec.nb(node, 0, 2)
            + i3 * rec.nb(node, 0, 3)
        )
        if rec.nb(node, 2, 0) != 4:
            for i in range(n):
                mem.put_f32(flat, i, mem.f32(x + i * rec.nb(node, 2, 0), 0))
            x = flat
        if values.is_plain(w) and rec.nb(node, 0, 0) != values.n_bytes(w):
            for i in range(n):
                values.put_1(w, y + i * rec.nb(node, 0, 0), 0, mem.f32(x, i))
        else:
            values.row_from_f32(w, x, y, n, rec.param(node, 0))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    dst, x, ids = node.src
    plain = node.kind.name in values.PLAIN
    if x.kind.name != "f32" or not (
        plain or (node.kind.encode is not None and node.contiguous_rows)
    ):
        return None
    params = (codec.tables_address(node.kind), int(ids.kind.name == "i64"))
    return [Step(set_rows, (node, dst, x, ids), params, ("", node.kind.name), private=4 * x.ne[0])]
