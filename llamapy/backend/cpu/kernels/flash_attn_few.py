"""flash_attn with few queries (decode): one query of one head at a time over all keys; scores stay
in scratch.

Keys that the mask hides are skipped unread, so a cache that is visible in steps costs nothing for
its empty end.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.attention import capped, mask_row, plane, slope
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.ops.flash_attn import FlashAttn
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd
from llamapy.quants import codec

OPS = ("flash_attn",)
FEW = 4


@compiled
def dot(w, row, q, d):
    """Key row (plain type) times query; the query is padded with zeros to a multiple of 16."""
    a, b = simd.zeros_f32x16(), simd.zeros_f32x16()
    size, whole = values.n_bytes(w), d // 32 * 32
    for i in range(0, whole, 32):
        a = simd.fma_f32x16(values.load_16(w, row + size * i), simd.load_f32x16(q + 4 * i), a)
        b = simd.fma_f32x16(
            values.load_16(w, row + size * (i + 16)), simd.load_f32x16(q + 4 * i + 64), b
        )
    total = simd.total_f32x16(a + b)
    for i in range(whole, d):
        total += values.load_1(w, row, i) * mem.f32(q, i)
    return total


@compiled
def add_row(w, row, p, out, d):
    """out += p * row."""
    size, whole, factor = values.n_bytes(w), d // 16 * 16, simd.splat_f32x16(p)
    for i in range(0, whole, 16):
        y = simd.fma_f32x16(
            factor, values.load_16(w, row + size * i), simd.load_f32x16(out + 4 * i)
        )
        simd.store_f32x16(out + 4 * i, y)
    for i in range(whole, d):
        mem.put_f32(out, i, mem.f32(out, i) + p * values.load_1(w, row, i))


@compiled
def as_floats(w, row, d, flat, scratch, tables):
    """The row itself for a plain type, else dequantized to `flat`."""
    if values.is_plain(w):
        return row
    values.row_to_f32(w, row, flat, d, scratch, tables)
    return flat


@compiled
def one_query(node, head, query, i3, k_type, v_type, q, scores, out, flat, scratch):
    """softmax(q . K) . V of one query into `out` [dv]."""
    d, n_kv, dv = rec.ne(node, 2, 0), rec.ne(node, 2, 1), rec.ne(node, 3, 0)
    cap, bias = rec.fparam(node, 2), slope(head, rec.ne(node, 1, 2), rec.fparam(node, 1))
    keys, vals = plane(node, 2, head, i3), plane(node, 3, head, i3)
    mask = mask_row(node, 4, query, head, i3)
    hidden, top = np.float32(-np.inf), np.float32(-np.inf)
    for j in range(n_kv):
        s = hidden
        add = np.float32(0) if mask == 0 else mem.f16(mask, j)
        if add != hidden:
            row = as_floats(
                k_type, keys + j * rec.nb(node, 2, 1), d, flat, scratch, rec.param(node, 3)
            )
            s = key_dot(k_type, row, q, d)
            if cap != 0:
                s = cap * np.float32(np.tanh(s / cap))
            s += bias * add
        mem.put_f32(scores, j, s)
        top = max(top, s)
    sinks, total = rec.data(node, 5), np.float64(0)
    if sinks != 0:
        top = max(top, mem.f32(sinks, head))
        total = np.exp(np.float64(mem.f32(sinks, head) - top))
    for i in range(dv):
        mem.put_f32(out, i, np.float32(0))
    if top == hidden:
        return
    exponentials(scores, n_kv, top)
    for j in range(n_kv):
        p = mem.f32(scores, j)
        if p != 0:
            total += p
            row = as_floats(
                v_type, vals + j * rec.nb(node, 3, 1), dv, flat, scratch, rec.param(node, 4)
            )
            value_add(v_type, row, p, out, dv)
    inverse = np.float32(1.0 / total)
    for i in range(dv):
        mem.put_f32(out, i, mem.f32(out, i) * inverse)


@compiled
def key_dot(w, row, q, d):
    """As dot, for rows that as_floats gave."""
    if values.is_plain(w):
        return dot(w, row, q, d)
    acc = simd.zeros_f32x16()
    for i in range(0, d, 16):
        acc = simd.fma_f32x16(simd.load_f32x16(row + 4 * i), simd.load_f32x16(q + 4 * i), acc)
    return simd.total_f32x16(acc)


@compiled
def value_add(w, row, p, out, d):
    if values.is_plain(w):
        add_row(w, row, p, out, d)
        return
    factor = simd.splat_f32x16(p)
    for i in range(0, d, 16):
        simd.store_f32x16(
            out + 4 * i,
            simd.fma_f32x16(factor, simd.load_f32x16(row + 4 * i), simd.load_f32x16(out + 4 * i)),
        )


@compiled
def exponentials(scores, n, top):
    shift, whole = simd.splat_f32x16(top), n // 16 * 16
    for j in range(0, whole, 16):
        simd.store_f32x16(scores + 4 * j, simd.exp_f32x16(simd.load_f32x16(scores + 4 * j) - shift))
    for j in range(whole, n):
        mem.put_f32(scores, j, np.float32(np.exp(mem.f32(scores, j) - top)))


@kernel
def flash_attn_few(node, ith, nth, sync, k_type, v_type):
    """Parameters: scale, max_bias, softcap, tables of keys and of values."""
    d, n_q, n_head = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    dv = rec.ne(node, 3, 0)
    scale = rec.fparam(node, 0)
    scratch = rec.private(node, ith)
    q = scratch + values.SCRATCH
    out = q + 4 * ((d + 31) // 32 * 32)
    flat = out + 4 * ((dv + 31) // 32 * 32)
    scores = flat + 4 * ((max(d, dv) + 31) // 32 * 32)
    n_chunks = n_q * n_head * rec.ne(node, 1, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        head, rest = chunk % n_head, chunk // n_head
        query, i3 = rest % n_q, rest // n_q
        x = (
            rec.data(node, 1)
            + query * rec.nb(node, 1, 1)
            + head * rec.nb(node, 1, 2)
            + i3 * rec.nb(node, 1, 3)
        )
        for i in range(d):
            mem.put_f32(q, i, mem.f32(x + i * rec.nb(node, 1, 0), 0) * scale)
        one_query(node, head, query, i3, k_type, v_type, q, scores, out, flat, scratch)
        y = (
            rec.data(node, 0)
            + head * rec.nb(node, 0, 1)
            + query * rec.nb(node, 0, 2)
            + i3 * rec.nb(node, 0, 3)
        )
        for i in range(dv):
            mem.put_f32(y, i, mem.f32(out, i))
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    op = node.op
    if not isinstance(op, FlashAttn):
        return None
    q, k, v, mask, sinks = op.spread(node.src)
    assert q is not None and k is not None and v is not None
    for t in (k, v):
        if not t.contiguous_rows or (t.kind.name not in values.PLAIN and t.kind.unpack is None):
            return None
    if q.kind.name != "f32" or (
        mask is not None and (mask.kind.name != "f16" or not mask.contiguous_rows)
    ):
        return None
    up = 4 * sum((n + 31) // 32 * 32 for n in (q.ne[0], v.ne[0], max(q.ne[0], v.ne[0]), k.ne[1]))
    params = (
        float(op.scale), float(op.max_bias), float(op.softcap),
        codec.tables_address(k.kind), codec.tables_address(v.kind),
    )  # fmt: skip
    types = (k.kind.name, v.kind.name)
    return [
        Step(
            flash_attn_few, (node, q, k, v, mask, sinks), params, types, private=values.SCRATCH + up
        )
    ]


_ = capped
