"""flash_attn with few queries (decode): one query of one head at a time over all keys, four keys
side by side; scores stay in scratch.

Keys that the mask hides are not read (four at a time), so a cache that is visible in steps costs
nothing for its empty end.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.attention import HIDDEN, MINUS_INFINITY, mask_row, plane, slope
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.ops.flash_attn import FlashAttn
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd
from llamapy.quants import codec

OPS = ("flash_attn",)
FEW = 4
KEYS = 4


@compiled
def load(w, row, i):
    """Sixteen values of a row that `floats` gave."""
    if values.is_plain(w):
        return values.load_16(w, row + values.n_bytes(w) * i)
    return simd.load_f32x16(row + 4 * i)


@compiled
def floats(w, row, d, flat, scratch, tables):
    """The row itself for a plain type, else dequantized to `flat`."""
    if values.is_plain(w):
        return row
    values.row_to_f32(w, row, flat, d, scratch, tables)
    return flat


@compiled
def four_floats(w, rows, stride, first, n, d, flat, scratch, tables):
    """Rows first .. first + 3 for `load`; past the end the last again."""
    size = 4 * ((d + 31) // 32 * 32)
    r = rows + first * stride
    r1, r2 = rows + min(first + 1, n - 1) * stride, rows + min(first + 2, n - 1) * stride
    r3 = rows + min(first + 3, n - 1) * stride
    return (
        floats(w, r, d, flat, scratch, tables),
        floats(w, r1, d, flat + size, scratch, tables),
        floats(w, r2, d, flat + 2 * size, scratch, tables),
        floats(w, r3, d, flat + 3 * size, scratch, tables),
    )


@compiled
def four_dots(w, r0, r1, r2, r3, q, d, at):
    """Four keys times the query, to four scores at `at`."""
    whole = d // 16 * 16
    a, b = simd.zeros_f32x16(), simd.zeros_f32x16()
    c, e = a, b
    for i in range(0, whole, 16):
        x = simd.load_f32x16(q + 4 * i)
        a = simd.fma_f32x16(load(w, r0, i), x, a)
        b = simd.fma_f32x16(load(w, r1, i), x, b)
        c = simd.fma_f32x16(load(w, r2, i), x, c)
        e = simd.fma_f32x16(load(w, r3, i), x, e)
    simd.store_f32x4(at, simd.sums_f32x4(a, b, c, e))
    for i in range(whole, d):  # only plain types have such rows
        x = mem.f32(q, i)
        mem.put_f32(at, 0, mem.f32(at, 0) + x * values.load_1(w, r0, i))
        mem.put_f32(at, 1, mem.f32(at, 1) + x * values.load_1(w, r1, i))
        mem.put_f32(at, 2, mem.f32(at, 2) + x * values.load_1(w, r2, i))
        mem.put_f32(at, 3, mem.f32(at, 3) + x * values.load_1(w, r3, i))


@compiled
def add_four(w, r0, r1, r2, r3, p, out, d):
    """out += the sum of four rows times four weights at `p`."""
    whole = d // 16 * 16
    p0, p1 = simd.splat_f32x16(mem.f32(p, 0)), simd.splat_f32x16(mem.f32(p, 1))
    p2, p3 = simd.splat_f32x16(mem.f32(p, 2)), simd.splat_f32x16(mem.f32(p, 3))
    for i in range(0, whole, 16):
        y = simd.fma_f32x16(p0, load(w, r0, i), simd.load_f32x16(out + 4 * i))
        z = simd.fma_f32x16(p2, load(w, r2, i), p1 * load(w, r1, i))
        simd.store_f32x16(out + 4 * i, simd.fma_f32x16(p3, load(w, r3, i), y + z))
    for i in range(whole, d):
        y = mem.f32(p, 0) * values.load_1(w, r0, i) + mem.f32(p, 1) * values.load_1(w, r1, i)
        z = mem.f32(p, 2) * values.load_1(w, r2, i) + mem.f32(p, 3) * values.load_1(w, r3, i)
        mem.put_f32(out, i, mem.f32(out, i) + (y + z))


@compiled
def four_of_mask(mask, j, n):
    """The bits of four halves of a mask's row; there is nothing to see past its end."""
    if j + KEYS <= n:
        return np.uint64(0) if mask == 0 else mem.u64(mask, j // KEYS)
    word = np.uint64(HIDDEN)
    for t in range(n - j):
        bits = np.uint64(0) if mask == 0 else np.uint64(mem.u16(mask, j + t))
        shift = np.uint64(16 * t)
        word = (word & ~(np.uint64(0xFFFF) << shift)) | (bits << shift)
    return word


@compiled
def amend(scores, j, word, mask, bias, cap):
    """Cap four scores, and add what the mask says."""
    for t in range(KEYS):
        s = mem.f32(scores, j + t)
        if cap != 0:
            s = cap * np.float32(np.tanh(s / cap))
        bits = (word >> np.uint64(16 * t)) & np.uint64(0xFFFF)
        if bits == MINUS_INFINITY:
            s = np.float32(-np.inf)
        elif bits != 0:
            s += bias * mem.f16(mask, j + t)
        mem.put_f32(scores, j + t, s)


@compiled
def score(node, head, query, i3, w, q, scores, flat, scratch):
    """A score for every key, minus infinity for hidden ones and up to a multiple of 16."""
    d, n_kv, stride = rec.ne(node, 2, 0), rec.ne(node, 2, 1), rec.nb(node, 2, 1)
    cap, bias = rec.fparam(node, 2), slope(head, rec.ne(node, 1, 2), rec.fparam(node, 1))
    keys, mask = plane(node, 2, head, i3), mask_row(node, 4, query, head, i3)
    nothing = simd.splat_f32x4(np.float32(-np.inf))
    for j in range(0, (n_kv + 15) // 16 * 16, KEYS):
        word = four_of_mask(mask, j, n_kv)
        if word == np.uint64(HIDDEN):
            simd.store_f32x4(scores + 4 * j, nothing)
            continue
        r0, r1, r2, r3 = four_floats(
            w, keys, stride, j, n_kv, d, flat, scratch, rec.param(node, 3)
        )
        four_dots(w, r0, r1, r2, r3, q, d, scores + 4 * j)
        if word != 0 or cap != 0:
            amend(scores, j, word, mask, bias, cap)


@compiled
def greatest(scores, n):
    """The greatest of n scores, a multiple of 16."""
    top = simd.load_f32x16(scores)
    for j in range(16, n, 16):
        top = simd.max_f32x16(top, simd.load_f32x16(scores + 4 * j))
    return simd.greatest_f32x16(top)


@compiled
def weigh(scores, n, top):
    """Scores -> weights, n being a multiple of 16; their sum."""
    shift, total = simd.splat_f32x16(top), simd.zeros_f32x16()
    for j in range(0, n, 16):
        p = simd.exp_f32x16(simd.load_f32x16(scores + 4 * j) - shift)
        simd.store_f32x16(scores + 4 * j, p)
        total = total + p
    return simd.total_f32x16(total)


@compiled
def add_values(node, head, i3, w, scores, out, flat, scratch):
    """out += the sum over keys of weight * value. What has no weight is not read: a cell that
    nobody sees may hold anything."""
    n_kv, dv, stride = rec.ne(node, 2, 1), rec.ne(node, 3, 0), rec.nb(node, 3, 1)
    vals = plane(node, 3, head, i3)
    for j in range(0, n_kv, KEYS):
        p, seen = scores + 4 * j, np.int64(-1)
        for t in range(KEYS):
            if mem.f32(p, t) != 0:
                seen = j + t
        if seen < 0:
            continue
        r0, r1, r2, r3 = four_floats(
            w, vals, stride, j, n_kv, dv, flat, scratch, rec.param(node, 4)
        )
        if mem.f32(p, 0) == 0 or mem.f32(p, 1) == 0 or mem.f32(p, 2) == 0 or mem.f32(p, 3) == 0:
            one = r3 if seen == j + 3 else (r2 if seen == j + 2 else (r1 if seen == j + 1 else r0))
            r0, r1 = r0 if mem.f32(p, 0) != 0 else one, r1 if mem.f32(p, 1) != 0 else one
            r2, r3 = r2 if mem.f32(p, 2) != 0 else one, r3 if mem.f32(p, 3) != 0 else one
        add_four(w, r0, r1, r2, r3, p, out, dv)


@compiled
def one_query(node, head, query, i3, k_type, v_type, q, scores, out, flat, scratch):
    """softmax(q . K) . V of one query into `out` [dv]."""
    n_kv, dv = rec.ne(node, 2, 1), rec.ne(node, 3, 0)
    score(node, head, query, i3, k_type, q, scores, flat, scratch)
    n, sinks = (n_kv + 15) // 16 * 16, rec.data(node, 5)
    top, hidden, total = greatest(scores, n), np.float32(-np.inf), np.float32(0)
    if sinks != 0:
        top = max(top, mem.f32(sinks, head))
        total = np.float32(np.exp(mem.f32(sinks, head) - top))
    for i in range(0, dv, 16):
        simd.store_f32x16(out + 4 * i, simd.zeros_f32x16())
    if top == hidden:
        return
    total += weigh(scores, n, top)
    add_values(node, head, i3, v_type, scores, out, flat, scratch)
    inverse = simd.splat_f32x16(np.float32(1) / total)
    for i in range(0, dv, 16):
        simd.store_f32x16(out + 4 * i, simd.load_f32x16(out + 4 * i) * inverse)


@compiled
def take_query(x, step, d, scale, q):
    """d numbers, `step` bytes apart, times the scale."""
    whole = d // 16 * 16 if step == 4 else 0
    factor = simd.splat_f32x16(scale)
    for i in range(0, whole, 16):
        simd.store_f32x16(q + 4 * i, simd.load_f32x16(x + 4 * i) * factor)
    for i in range(whole, d):
        mem.put_f32(q, i, mem.f32(x + i * step, 0) * scale)


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
    scores = flat + KEYS * 4 * ((max(d, dv) + 31) // 32 * 32)
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
        take_query(x, rec.nb(node, 1, 0), d, scale, q)
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
    d, dv = q.ne[0], v.ne[0]
    up = 4 * sum((n + 31) // 32 * 32 for n in (d, dv, *KEYS * [max(d, dv)], k.ne[1]))
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
