"""mul_mat_id: each token's row meets the matrices of the experts that it chose. An expert outside
the file gives NaN.

Work is shared as (token, choice) pairs times chunks of weight rows.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import dot_pairs, dots, values
from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import mem
from llamapy.quants import codec

OPS = ("mul_mat_id",)
ROWS = 64


@kernel
def mul_mat_id(node, ith, nth, sync, w, b):
    """Parameters: bytes a quantized row (0: x is float32 as it is), tables."""
    k, n = rec.ne(node, 1, 0), rec.ne(node, 1, 1)
    x_size, tables = rec.param(node, 0), rec.param(node, 1)
    scratch, n_used = rec.private(node, ith), rec.ne(node, 0, 1)
    per_pair = (n + ROWS - 1) // ROWS
    n_chunks = per_pair * n_used * rec.ne(node, 0, 2)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        pair, first = chunk // per_pair, chunk % per_pair * ROWS
        used, token = pair % n_used, pair // n_used
        expert = np.int64(
            mem.i32(rec.data(node, 3) + used * rec.nb(node, 3, 0) + token * rec.nb(node, 3, 1), 0)
        )
        y = rec.data(node, 0) + used * rec.nb(node, 0, 1) + token * rec.nb(node, 0, 2)
        x_row = used % rec.ne(node, 2, 1)
        rows = rec.data(node, 1) + expert * rec.nb(node, 1, 2)
        stride, last = rec.nb(node, 1, 1), min(first + ROWS, n)
        if expert < 0 or expert >= rec.ne(node, 1, 2):
            for r in range(first, last):
                mem.put_f32(y, r, np.float32(np.nan))
        elif values.is_plain(w):
            x = rec.data(node, 2) + x_row * rec.nb(node, 2, 1) + token * rec.nb(node, 2, 2)
            dot_pairs.float_products(w, rows, stride, rec.nb(node, 1, 0), x, k, y, first, last)
        else:
            x = rec.shared(node) + (x_row + token * rec.ne(node, 2, 1)) * x_size
            dot_pairs.products(w, rows, stride, x, k, scratch, tables, y, first, last)
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    w, x, ids = node.src
    if x.kind.name != "f32" or not w.contiguous_rows:
        return None
    if w.kind.name in values.PLAIN:
        if not x.contiguous_rows:
            return None
        return [Step(mul_mat_id, (node, w, x, ids), (0, 0), (w.kind.name, ""), private=64)]
    if w.kind.unpack is None or w.kind.n_values > 256:
        return None
    step = act.quantize_step(x, 1)
    params = (act.row_bytes(x.ne[0], 1), codec.tables_address(w.kind))
    product = Step(
        mul_mat_id,
        (node, w, x, ids),
        params,
        (w.kind.name, ""),
        step.shared,
        dots.row_scratch(x.ne[0]),
        takes=step.leaves,
    )
    return [step, product]
