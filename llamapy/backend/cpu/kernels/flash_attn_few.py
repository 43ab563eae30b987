"""flash_attn with few queries (decode): each query against blocks of keys, the heads that share a
key together; where there are several blocks, a second step joins what they give.

A block is read once, row after row, for all its heads: with many positions behind, decoding is
reading the cache. Rows become float32 four at a time. Keys that the mask hides are not read (four
at a time), so a cache that is visible in steps costs nothing for its empty end.
"""

from __future__ import annotations

import math

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.attention import (
    HIDDEN,
    MINUS_INFINITY,
    mask_row,
    plane,
    slope,
    sources,
)
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import block_of, next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("flash_attn",)
FEW = 4
KEYS = 4  # side by side
BLOCK = 256  # keys
AHEAD = 16  # rows that are asked for ahead: heads of a row lie apart, which no processor foresees
PART = 64  # bytes before what a block gives: its greatest score, the sum of its weights


def padded(n):  # type: ignore[no-untyped-def]
    """Bytes of n float32, for loops of 32."""
    return 4 * ((n + 31) // 32 * 32)


room = compiled(padded)


@compiled
def four_rows(w, rows, stride, first, n, d, size, flat, scratch, tables):
    """Rows first .. first + 3 as float32, `size` bytes apart; past the end the last again."""
    for t in range(KEYS):
        row, out = rows + min(first + t, n - 1) * stride, flat + t * size
        for line in range(0, d // values.n_values(w) * values.n_bytes(w), 64):
            simd.prefetch(row + AHEAD * stride + line)
        if values.is_plain(w) and d % 16 == 0:
            for i in range(0, d, 16):  # not `row_to_f32`: its call would take half of the time
                simd.store_f32x16(out + 4 * i, values.load_16(w, row + values.n_bytes(w) * i))
        else:
            values.row_to_f32(w, row, out, d, scratch, tables)


@compiled
def four_dots(rows, size, q, d, at):
    """Four keys times a query, to four scores at `at`."""
    r1, r2, r3 = rows + size, rows + 2 * size, rows + 3 * size
    whole = d // 16 * 16
    a, b = simd.zeros_f32x16(), simd.zeros_f32x16()
    c, e = a, b
    for i in range(0, 4 * whole, 64):
        x = simd.load_f32x16(q + i)
        a = simd.fma_f32x16(simd.load_f32x16(rows + i), x, a)
        b = simd.fma_f32x16(simd.load_f32x16(r1 + i), x, b)
        c = simd.fma_f32x16(simd.load_f32x16(r2 + i), x, c)
        e = simd.fma_f32x16(simd.load_f32x16(r3 + i), x, e)
    simd.store_f32x4(at, simd.sums_f32x4(a, b, c, e))
    for i in range(whole, d):
        x = mem.f32(q, i)
        mem.put_f32(at, 0, mem.f32(at, 0) + x * mem.f32(rows, i))
        mem.put_f32(at, 1, mem.f32(at, 1) + x * mem.f32(r1, i))
        mem.put_f32(at, 2, mem.f32(at, 2) + x * mem.f32(r2, i))
        mem.put_f32(at, 3, mem.f32(at, 3) + x * mem.f32(r3, i))


@compiled
def add_four(rows, size, p, out, d):
    """out += the sum of four rows times four weights at `p`; some room after d is written too."""
    r1, r2, r3 = rows + size, rows + 2 * size, rows + 3 * size
    p0, p1 = simd.splat_f32x16(mem.f32(p, 0)), simd.splat_f32x16(mem.f32(p, 1))
    p2, p3 = simd.splat_f32x16(mem.f32(p, 2)), simd.splat_f32x16(mem.f32(p, 3))
    for i in range(0, 4 * d, 64):
        y = simd.fma_f32x16(p0, simd.load_f32x16(rows + i), simd.load_f32x16(out + i))
        y = simd.fma_f32x16(p1, simd.load_f32x16(r1 + i), y)
        y = simd.fma_f32x16(p2, simd.load_f32x16(r2 + i), y)
        simd.store_f32x16(out + i, simd.fma_f32x16(p3, simd.load_f32x16(r3 + i), y))


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
def amend(scores, word, mask, j, bias, cap):
    """Cap the scores of keys j .. j + 3, and add what the mask says."""
    for t in range(KEYS):
        s = mem.f32(scores, t)
        if cap != 0:
            s = cap * np.float32(np.tanh(s / cap))
        bits = (word >> np.uint64(16 * t)) & np.uint64(0xFFFF)
        if bits == MINUS_INFINITY:
            s = np.float32(-np.inf)
        elif bits != 0:
            s += bias * mem.f16(mask, j + t)
        mem.put_f32(scores, t, s)


@compiled
def score(node, head, heads, query, i3, first, n, w, q, scores, flat, scratch):
    """Scores of keys first .. first + n (to a multiple of 16: minus infinity is what hidden ones
    have) for each head."""
    d, n_kv, n_head = rec.ne(node, 2, 0), rec.ne(node, 2, 1), rec.ne(node, 1, 2)
    stride, size, cap = rec.nb(node, 2, 1), room(d), rec.fparam(node, 2)
    keys, mask = plane(node, 2, head, i3), mask_row(node, 4, query, head, i3)
    nothing = simd.splat_f32x4(np.float32(-np.inf))
    for j in range(0, (n + 15) // 16 * 16, KEYS):
        word = four_of_mask(mask, first + j, n_kv) if j < n else np.uint64(HIDDEN)
        if word != np.uint64(HIDDEN):
            four_rows(w, keys, stride, first + j, n_kv, d, size, flat, scratch, rec.param(node, 3))
        for h in range(heads):
            at = scores + 4 * (h * BLOCK + j)
            if word == np.uint64(HIDDEN):
                simd.store_f32x4(at, nothing)
                continue
            four_dots(flat, size, q + h * size, d, at)
            if word != 0 or cap != 0:
                bias = slope(head + h, n_head, rec.fparam(node, 1))
                amend(at, word, mask, first + j, bias, cap)


@compiled
def weigh(scores, n, out, dv):
    """Scores of one head -> weights; greatest and sum to the front of `out`, zeros behind."""
    top = simd.load_f32x16(scores)
    for j in range(16, n, 16):
        top = simd.max_f32x16(top, simd.load_f32x16(scores + 4 * j))
    most, total = simd.greatest_f32x16(top), simd.zeros_f32x16()
    # Where nothing is seen, the weights are zeros as well.
    shift = simd.splat_f32x16(most if most > np.float32(-np.inf) else np.float32(0))
    for j in range(0, n, 16):
        p = simd.exp_down_f32x16(simd.load_f32x16(scores + 4 * j) - shift)
        simd.store_f32x16(scores + 4 * j, p)
        total = total + p
    mem.put_f32(out, 0, most)
    mem.put_f32(out, 1, simd.total_f32x16(total))
    clear(out + PART, dv)


@compiled
def clear(out, n):
    """n zeros, and some room after them."""
    for i in range(0, 4 * n, 64):
        simd.store_f32x16(out + i, simd.zeros_f32x16())


@compiled
def add_values(node, head, heads, i3, first, n, w, scores, parts, part_size, flat, scratch):
    """To each head's part the sum over keys first .. first + n of weight * value. Rows without a
    weight become zeros: a cell that nobody sees may hold anything."""
    n_kv, dv, stride = rec.ne(node, 2, 1), rec.ne(node, 3, 0), rec.nb(node, 3, 1)
    vals, size = plane(node, 3, head, i3), room(dv)
    for j in range(0, n, KEYS):
        seen = 0  # a bit for each key to which any head gives a weight
        for h in range(heads):
            for t in range(KEYS):
                seen |= (1 << t) if mem.f32(scores, h * BLOCK + j + t) != 0 else 0
        if seen == 0:
            continue
        four_rows(w, vals, stride, first + j, n_kv, dv, size, flat, scratch, rec.param(node, 4))
        for t in range(KEYS):
            if seen & (1 << t) == 0:
                clear(flat + t * size, dv)
        for h in range(heads):
            add_four(flat, size, scores + 4 * (h * BLOCK + j), parts + h * part_size + PART, dv)


@compiled
def join(parts, n_parts, size, sinks, head, y, dv):
    """softmax(q . K) . V of one query and head from its parts, `size` bytes apart."""
    top, total = np.float32(-np.inf), np.float32(0)
    for b in range(n_parts):
        top = max(top, mem.f32(parts + b * size, 0))
    if sinks != 0:
        top = max(top, mem.f32(sinks, head))
        total = np.float32(np.exp(mem.f32(sinks, head) - top))
    for b in range(n_parts):
        part = parts + b * size
        factor = np.float32(0)
        if mem.f32(part, 0) > np.float32(-np.inf):
            factor = np.float32(np.exp(mem.f32(part, 0) - top))
        total += factor * mem.f32(part, 1)
        mem.put_f32(part, 0, factor)
    inverse = np.float32(1) / total if total > 0 else np.float32(0)
    whole = dv // 16 * 16
    for i in range(0, 4 * whole, 64):
        acc = simd.zeros_f32x16()
        for b in range(n_parts):
            part = parts + b * size
            acc = simd.fma_f32x16(
                simd.splat_f32x16(mem.f32(part, 0)), simd.load_f32x16(part + PART + i), acc
            )
        simd.store_f32x16(y + i, acc * simd.splat_f32x16(inverse))
    for i in range(whole, dv):
        value = np.float32(0)
        for b in range(n_parts):
            part = parts + b * size
            value += mem.f32(part, 0) * mem.f32(part + PART, i)
        mem.put_f32(y, i, value * inverse)


@compiled
def take_query(node, head, query, i3, q):
    """A head's numbers times the scale."""
    d, step = rec.ne(node, 1, 0), rec.nb(node, 1, 0)
    x = rec.data(node, 1) + query * rec.nb(node, 1, 1) + head * rec.nb(node, 1, 2)
    x += i3 * rec.nb(node, 1, 3)
    whole = d // 16 * 16 if step == 4 else 0
    factor = simd.splat_f32x16(rec.fparam(node, 0))
    for i in range(0, 4 * whole, 64):
        simd.store_f32x16(q + i, simd.load_f32x16(x + i) * factor)
    for i in range(whole, d):
        mem.put_f32(q, i, mem.f32(x + i * step, 0) * rec.fparam(node, 0))


@compiled
def result(node, head, query, i3):
    """Where a head's result goes."""
    return (
        rec.data(node, 0)
        + head * rec.nb(node, 0, 1)
        + query * rec.nb(node, 0, 2)
        + i3 * rec.nb(node, 0, 3)
    )


@kernel
def flash_attn_few(node, ith, nth, sync, k_type, v_type):
    """Parameters: scale, max_bias, softcap, tables of keys and of values, heads a chunk, blocks of
    keys. With one block the result, else the parts for `join_parts` in the shared scratch."""
    d, n_q, n_head = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    n_kv, dv, heads, blocks = (
        rec.ne(node, 2, 1),
        rec.ne(node, 3, 0),
        rec.param(node, 5),
        rec.param(node, 6),
    )
    scratch, part_size = rec.private(node, ith), PART + room(dv)
    flat = scratch + values.SCRATCH
    q = flat + KEYS * room(max(d, dv))
    parts, scores = q + heads * room(d), q + heads * (room(d) + part_size)
    groups = n_head // heads
    n_chunks = groups * blocks * n_q * rec.ne(node, 1, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        # All heads of some keys first: what they read lies side by side.
        group, block, rest = chunk % groups, chunk // groups % blocks, chunk // groups // blocks
        head, query, i3 = group * heads, rest % n_q, rest // n_q
        first, n = block * BLOCK, min(BLOCK, n_kv - block * BLOCK)
        if blocks > 1:
            part = ((rest * groups + group) * blocks + block) * heads
            parts = rec.shared(node) + part * part_size
        for h in range(heads):
            take_query(node, head + h, query, i3, q + h * room(d))
        score(node, head, heads, query, i3, first, n, k_type, q, scores, flat, scratch)
        for h in range(heads):
            weigh(scores + 4 * h * BLOCK, (n + 15) // 16 * 16, parts + h * part_size, dv)
        add_values(node, head, heads, i3, first, n, v_type, scores, parts, part_size, flat, scratch)
        if blocks == 1:
            for h in range(heads):
                y = result(node, head + h, query, i3)
                join(parts + h * part_size, 1, part_size, rec.data(node, 5), head + h, y, dv)
        chunk = next_chunk(node, sync)


@kernel
def join_parts(node, ith, nth, sync, a, b):
    """Parameters: heads a chunk, blocks of keys. Tensors: result, sinks."""
    dv, n_head, n_q = rec.ne(node, 0, 0), rec.ne(node, 0, 1), rec.ne(node, 0, 2)
    heads, blocks, part_size = rec.param(node, 0), rec.param(node, 1), PART + room(dv)
    start, end = block_of(n_head * n_q * rec.ne(node, 0, 3), ith, nth)
    for row in range(start, end):
        head, query, i3 = row % n_head, row // n_head % n_q, row // n_head // n_q
        group = (i3 * n_q + query) * (n_head // heads) + head // heads
        parts = rec.shared(node) + (group * blocks * heads + head % heads) * part_size
        y = result(node, head, query, i3)
        join(parts, blocks, heads * part_size, rec.data(node, 1), head, y, dv)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    read = sources(node)
    if read is None:
        return None
    d, dv, n_rows = read.q.ne[0], read.v.ne[0], math.prod(read.q.ne[1:])
    blocks, heads = -(-read.k.ne[1] // BLOCK), read.heads
    if blocks * n_rows // heads < 2 * machine.n_threads:  # too little to share among the threads
        heads = 1
    part = PART + padded(dv)
    private = values.SCRATCH + KEYS * padded(max(d, dv))
    private += heads * (padded(d) + part + 4 * BLOCK)
    tensors, params, types = read.tensors(node), (*read.params, heads, blocks), read.types
    if blocks == 1:
        return [Step(flash_attn_few, tensors, params, types, private=private)]
    size, key = blocks * n_rows * part, (id(node), "parts")
    return [
        Step(flash_attn_few, tensors, params, types, shared=size, private=private, leaves=key),
        Step(join_parts, (node, read.sinks), (heads, blocks), shared=size, takes=key),
    ]
