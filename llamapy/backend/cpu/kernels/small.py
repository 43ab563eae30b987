"""Small ops of experts and choices: concat, add_id, argsort, top_k, argmax, diag_mask_inf, log,
softplus."""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem

OPS = ("concat", "add_id", "argsort", "top_k", "argmax", "diag_mask_inf", "log", "softplus")


@kernel
def concat(node, ith, nth, sync, a, b):
    """Parameter 0: the dimension; 1: bytes an element (2 or 4)."""
    dim, size = rec.param(node, 0), rec.param(node, 1)
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        i1, rest = r % rec.ne(node, 0, 1), r // rec.ne(node, 0, 1)
        i2, i3 = rest % rec.ne(node, 0, 2), rest // rec.ne(node, 0, 2)
        for i0 in range(rec.ne(node, 0, 0)):
            j0, j1, j2, j3, t = i0, i1, i2, i3, 1
            length = rec.ne(node, 1, dim)
            if dim == 0 and i0 >= length:
                j0, t = i0 - length, 2
            elif dim == 1 and i1 >= length:
                j1, t = i1 - length, 2
            elif dim == 2 and i2 >= length:
                j2, t = i2 - length, 2
            elif dim == 3 and i3 >= length:
                j3, t = i3 - length, 2
            x = rec.data(node, t) + j0 * rec.nb(node, t, 0) + j1 * rec.nb(node, t, 1)
            x += j2 * rec.nb(node, t, 2) + j3 * rec.nb(node, t, 3)
            y = rec.row_address(node, 0, r) + i0 * rec.nb(node, 0, 0)
            if size == 4:
                mem.put_u32(y, 0, mem.u32(x, 0))
            else:
                mem.put_u16(y, 0, mem.u16(x, 0))


@kernel
def add_id(node, ith, nth, sync, a, b):
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        used, token = r % rec.ne(node, 0, 1), r // rec.ne(node, 0, 1)
        expert = np.int64(
            mem.i32(rec.data(node, 3) + used * rec.nb(node, 3, 0) + token * rec.nb(node, 3, 1), 0)
        )
        inside = 0 <= expert < rec.ne(node, 2, 1)
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        bias = rec.data(node, 2) + expert * rec.nb(node, 2, 1)
        for i in range(rec.ne(node, 0, 0)):
            more = mem.f32(bias + i * rec.nb(node, 2, 0), 0) if inside else np.float32(np.nan)
            mem.put_f32(y, i, mem.f32(x + i * rec.nb(node, 1, 0), 0) + more)


@compiled
def before(x, stride, i, j, sign):
    """Whether number i comes before number j: by value, equal ones by number."""
    p, q = sign * mem.f32(x + i * stride, 0), sign * mem.f32(x + j * stride, 0)
    return p < q or (p == q and i < j)


@kernel
def order(node, ith, nth, sync, a, b):
    """Parameter 0: 1 ascending, -1 descending. Binary insertion: rows are short (experts)."""
    sign, n, k = np.float32(rec.param(node, 0)), rec.ne(node, 1, 0), rec.ne(node, 0, 0)
    stride, ids = rec.nb(node, 1, 0), rec.private(node, ith)
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        for i in range(n):
            low, high = 0, i
            while low < high:
                middle = (low + high) // 2
                if before(x, stride, i, np.int64(mem.i32(ids, middle)), sign):
                    high = middle
                else:
                    low = middle + 1
            for j in range(i, low, -1):
                mem.put_i32(ids, j, mem.i32(ids, j - 1))
            mem.put_i32(ids, low, np.int32(i))
        for i in range(k):
            mem.put_i32(y, i, mem.i32(ids, i))


@kernel
def argmax(node, ith, nth, sync, a, b):
    start, end = block_of(rec.n_rows(node, 1), ith, nth)
    for r in range(start, end):
        x, best = rec.row_address(node, 1, r), 0
        for i in range(1, rec.ne(node, 1, 0)):
            if mem.f32(x + i * rec.nb(node, 1, 0), 0) > mem.f32(x + best * rec.nb(node, 1, 0), 0):
                best = i
        mem.put_i32(rec.data(node, 0), r, np.int32(best))


@kernel
def diag_mask_inf(node, ith, nth, sync, a, b):
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        for i in range(rec.ne(node, 0, 0)):
            hidden = i > rec.param(node, 0) + r % rec.ne(node, 0, 1)
            mem.put_f32(
                y, i, np.float32(-np.inf) if hidden else mem.f32(x + i * rec.nb(node, 1, 0), 0)
            )


@kernel
def by_element(node, ith, nth, sync, a, b):
    """Parameter 0: 0 log, 1 softplus."""
    start, end = block_of(rec.n_rows(node, 0), ith, nth)
    for r in range(start, end):
        x, y = rec.row_address(node, 1, r), rec.row_address(node, 0, r)
        for i in range(rec.ne(node, 0, 0)):
            z = np.float64(mem.f32(x + i * rec.nb(node, 1, 0), 0))
            if rec.param(node, 0) == 0:
                z = np.log(z)
            else:
                z = max(z, 0.0) + np.log1p(np.exp(-abs(z)))
            mem.put_f32(y, i, np.float32(z))


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    op = node.op
    if op is None or any(s.kind.name not in ("f32", "i32", "f16", "bf16") for s in node.src):
        return None
    name, tensors = op.name, (node, *node.src)
    if name == "concat":
        return [Step(concat, tensors, (getattr(op, "dim", 0), node.kind.n_bytes))]
    if node.src[0].kind.name != "f32":
        return None
    if name in ("argsort", "top_k"):
        sign = 1 if getattr(op, "order", "desc") == "asc" else -1
        return [Step(order, tensors, (sign,), private=4 * node.src[0].ne[0])]
    if name == "diag_mask_inf":
        return [Step(diag_mask_inf, tensors, (getattr(op, "n_past", 0),))]
    if name in ("log", "softplus"):
        return [Step(by_element, tensors, (int(name == "softplus"),))]
    if name == "argmax":
        return [Step(argmax, tensors)]
    return [Step(add_id, tensors)] if node.src[1].kind.name == "f32" else None
