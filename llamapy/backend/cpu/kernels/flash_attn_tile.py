"""flash_attn with many queries (prefill): sixteen queries of a head, one a lane, against blocks of
keys.

Online softmax in float32: no step needs a sum over lanes. Keys and values of a block are made
float32 once for the
sixteen queries. Blocks that the mask hides whole are skipped; blocks that it leaves whole need no
mask added.
"""

from __future__ import annotations

import numpy as np

from llamapy.backend.cpu import record as rec
from llamapy.backend.cpu import values
from llamapy.backend.cpu.attention import (
    HIDDEN,
    MINUS_INFINITY,
    capped,
    mask_row,
    plane,
    slope,
    sources,
)
from llamapy.backend.cpu.step import Machine, Step, kernel
from llamapy.backend.cpu.sync import next_chunk
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, mem, simd

OPS = ("flash_attn",)
PRIORITY = 10
FEW = 4
LANES = 16
KEYS = 6  # scored at a time: as many sums as the registers of AVX2 hold
BLOCK = 72  # keys a block; a multiple of KEYS and of 4
FLOOR = -1e30  # less than any score, yet finite: masked lanes need no special case

SKIP, WHOLE, MASKED = 0, 1, 2


@compiled
def classify(node, head, i3, query, live, first, n):
    """How the mask treats keys first .. first + n for these queries (four halves a word)."""
    if rec.data(node, 4) == 0:
        return WHOLE
    hidden, shown = np.uint64(HIDDEN), np.uint64(0)
    nothing, everything = True, True
    for lane in range(live):
        row = mask_row(node, 4, query + lane, head, i3) + 2 * first
        for j in range(n // 4):
            word = mem.u64(row, j)
            nothing = nothing and word == hidden
            everything = everything and word == shown
        for j in range(n // 4 * 4, n):
            bits = mem.u16(row, j)
            nothing = nothing and bits == MINUS_INFINITY
            everything = everything and bits == 0
        if not (nothing or everything):
            return MASKED
    return SKIP if nothing else WHOLE


@compiled
def shown(node, head, i3, query, live, first, n):
    """Keys of a block up to the last one that any of these queries sees."""
    last = 0
    for lane in range(live):
        row, j = mask_row(node, 4, query + lane, head, i3) + 2 * first, n
        while j > last and mem.u16(row, j - 1) == MINUS_INFINITY:
            j -= 1
        last = max(last, j)
    return last


def padded(d):  # type: ignore[no-untyped-def]
    """Bytes of a row as float32. Rows a power of two apart would share a few places of the cache:
    of 72 rows of 256 values, read side by side, not all would stay."""
    return 4 * d + 64


room = compiled(padded)


@compiled
def rows_to_f32(w, rows, stride, n, d, out, scratch, tables):
    """n rows; as many after them, or places where none is any more, are asked for."""
    size = values.n_bytes(w) * d // values.n_values(w)
    for j in range(n):
        for line in range(0, size, 64):
            simd.prefetch(rows + (j + n) * stride + line)
        values.row_to_f32(w, rows + j * stride, out + j * room(d), d, scratch, tables)


@compiled
def scores_of(qt, keys, n, d, out):
    """out[j] = sixteen queries . key j, six keys at a time (past the end: the last again)."""
    size, last = room(d), keys + room(d) * (n - 1)
    for j in range(0, n, KEYS):
        k0 = keys + size * j
        k1, k2, k3 = min(k0 + size, last), min(k0 + 2 * size, last), min(k0 + 3 * size, last)
        k4, k5 = min(k0 + 4 * size, last), min(k0 + 5 * size, last)
        c0, c1, c2 = simd.zeros_f32x16(), simd.zeros_f32x16(), simd.zeros_f32x16()
        c3, c4, c5 = simd.zeros_f32x16(), simd.zeros_f32x16(), simd.zeros_f32x16()
        for i in range(d):
            q = simd.load_f32x16(qt + 64 * i)
            c0 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k0, i)), c0)
            c1 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k1, i)), c1)
            c2 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k2, i)), c2)
            c3 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k3, i)), c3)
            c4 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k4, i)), c4)
            c5 = simd.fma_f32x16(q, simd.splat_f32x16(mem.f32(k5, i)), c5)
        at = out + 64 * j
        simd.store_f32x16(at, c0)
        simd.store_f32x16(at + 64, c1)
        simd.store_f32x16(at + 128, c2)
        simd.store_f32x16(at + 192, c3)
        simd.store_f32x16(at + 256, c4)
        simd.store_f32x16(at + 320, c5)


@compiled
def add_mask(node, head, i3, query, live, first, n, factor, scores):
    for lane in range(LANES):
        row = mask_row(node, 4, query + min(lane, live - 1), head, i3) + 2 * first
        for j in range(n):
            at = j * LANES + lane
            mem.put_f32(scores, at, mem.f32(scores, at) + factor * mem.f16(row, j))


@compiled
def weigh(scores, n, top_at, total_at):
    """Scores -> weights against the new maximum; the factor for what was summed before."""
    old = simd.load_f32x16(top_at)
    top = old
    for j in range(n):
        top = simd.max_f32x16(top, simd.load_f32x16(scores + 64 * j))
    alpha = simd.exp_down_f32x16(old - top)
    total = simd.load_f32x16(total_at) * alpha
    for j in range(n):
        p = simd.exp_down_f32x16(simd.load_f32x16(scores + 64 * j) - top)
        simd.store_f32x16(scores + 64 * j, p)
        total = total + p
    simd.store_f32x16(top_at, top)
    simd.store_f32x16(total_at, total)
    return alpha


@compiled
def add_six(weights, vals, n, size, alpha, at):
    """Six values of every key (at vals, `size` bytes apart) to six results of sixteen lanes."""
    c0, c1 = simd.load_f32x16(at) * alpha, simd.load_f32x16(at + 64) * alpha
    c2, c3 = simd.load_f32x16(at + 128) * alpha, simd.load_f32x16(at + 192) * alpha
    c4, c5 = simd.load_f32x16(at + 256) * alpha, simd.load_f32x16(at + 320) * alpha
    for j in range(n):
        p, v = simd.load_f32x16(weights + 64 * j), vals + j * size
        c0 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 0)), c0)
        c1 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 1)), c1)
        c2 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 2)), c2)
        c3 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 3)), c3)
        c4 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 4)), c4)
        c5 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 5)), c5)
    simd.store_f32x16(at, c0)
    simd.store_f32x16(at + 64, c1)
    simd.store_f32x16(at + 128, c2)
    simd.store_f32x16(at + 192, c3)
    simd.store_f32x16(at + 256, c4)
    simd.store_f32x16(at + 320, c5)


@compiled
def add_four(weights, vals, n, size, alpha, at):
    """The same with four values."""
    c0, c1 = simd.load_f32x16(at) * alpha, simd.load_f32x16(at + 64) * alpha
    c2, c3 = simd.load_f32x16(at + 128) * alpha, simd.load_f32x16(at + 192) * alpha
    for j in range(n):
        p, v = simd.load_f32x16(weights + 64 * j), vals + j * size
        c0 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 0)), c0)
        c1 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 1)), c1)
        c2 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 2)), c2)
        c3 = simd.fma_f32x16(p, simd.splat_f32x16(mem.f32(v, 3)), c3)
    simd.store_f32x16(at, c0)
    simd.store_f32x16(at + 64, c1)
    simd.store_f32x16(at + 128, c2)
    simd.store_f32x16(at + 192, c3)


@compiled
def add_values(weights, vals, n, dv, alpha, out):
    """out[i] = out[i] * alpha + sum over keys of weight * value, six i at a time, and four."""
    size, fours = room(dv), dv // 4 * 4
    sixes = fours - fours % 6 * 4 % 12
    for i in range(0, sixes, 6):
        add_six(weights, vals + 4 * i, n, size, alpha, out + 64 * i)
    for i in range(sixes, fours, 4):
        add_four(weights, vals + 4 * i, n, size, alpha, out + 64 * i)
    for i in range(fours, dv):
        c = simd.load_f32x16(out + 64 * i) * alpha
        for j in range(n):
            v = simd.splat_f32x16(mem.f32(vals + j * size, i))
            c = simd.fma_f32x16(simd.load_f32x16(weights + 64 * j), v, c)
        simd.store_f32x16(out + 64 * i, c)


@compiled
def take_queries(node, head, i3, query, live, scale, qt):
    """Queries side by side, scaled: qt[i, lane]."""
    d, step, stride = rec.ne(node, 1, 0), rec.nb(node, 1, 0), rec.nb(node, 1, 1)
    rows = rec.data(node, 1) + query * stride + head * rec.nb(node, 1, 2) + i3 * rec.nb(node, 1, 3)
    whole = d // 8 * 8 if live == LANES and step == 4 else 0
    for i in range(0, whole, 8):
        simd.turn_u32x8(rows + 4 * i, stride, qt + 64 * i, 64)
        simd.turn_u32x8(rows + 4 * i + 8 * stride, stride, qt + 64 * i + 32, 64)
    for lane in range(LANES):
        x = rows + min(lane, live - 1) * stride
        for i in range(whole, d):
            mem.put_f32(qt, i * LANES + lane, mem.f32(x + i * step, 0))
    factor = simd.splat_f32x16(scale)
    for i in range(d):
        simd.store_f32x16(qt + 64 * i, simd.load_f32x16(qt + 64 * i) * factor)


@compiled
def cap_scores(scores, n, cap):
    if cap != 0:
        for j in range(n):
            simd.store_f32x16(scores + 64 * j, capped(simd.load_f32x16(scores + 64 * j), cap))


@compiled
def weigh_sinks(node, head, top_at, total_at):
    """The sums become what results are to be multiplied by; a sink is one more key without a
    value."""
    sinks = rec.data(node, 5)
    for lane in range(LANES):
        top, total = mem.f32(top_at, lane), mem.f32(total_at, lane)
        factor = np.float32(1)
        if sinks != 0:
            sink = mem.f32(sinks, head)
            higher = max(top, sink)
            factor = np.float32(np.exp(top - higher))
            total = total * factor + np.float32(np.exp(sink - higher))
        mem.put_f32(total_at, lane, factor / total if total > 0 else np.float32(0))


@compiled
def finish(node, head, i3, query, live, top_at, total_at, out):
    """Sinks, division by the sums, and the sixteen columns to their places."""
    dv, stride = rec.ne(node, 3, 0), rec.nb(node, 0, 2)
    y = rec.data(node, 0) + head * rec.nb(node, 0, 1) + query * stride + i3 * rec.nb(node, 0, 3)
    weigh_sinks(node, head, top_at, total_at)
    factor = simd.load_f32x16(total_at)
    for i in range(dv):
        simd.store_f32x16(out + 64 * i, simd.load_f32x16(out + 64 * i) * factor)
    whole = dv // 8 * 8 if live == LANES else 0
    for i in range(0, whole, 8):
        simd.turn_u32x8(out + 64 * i, 64, y + 4 * i, stride)
        simd.turn_u32x8(out + 64 * i + 32, 64, y + 4 * i + 8 * stride, stride)
    for lane in range(live):
        for i in range(whole, dv):
            mem.put_f32(y + lane * stride, i, mem.f32(out, i * LANES + lane))


@compiled
def start_head(node, head, i3, query, live, state):
    """Queries taken, maximum and sum cleared, results zero."""
    d, dv = rec.ne(node, 1, 0), rec.ne(node, 3, 0)
    take_queries(node, head, i3, query, live, rec.fparam(node, 0), state + 128)
    simd.store_f32x16(state, simd.splat_f32x16(np.float32(FLOOR)))
    simd.store_f32x16(state + 64, simd.zeros_f32x16())
    for i in range(dv):
        simd.store_f32x16(state + 128 + 64 * (d + i), simd.zeros_f32x16())


@compiled
def meet_block(node, head, i3, query, live, first, n, how, keys, vals, scores, state):
    """One head's sixteen queries against a block of keys and values in float32."""
    d, dv, cap = rec.ne(node, 1, 0), rec.ne(node, 3, 0), rec.fparam(node, 2)
    qt = state + 128
    scores_of(qt, keys, n, d, scores)
    cap_scores(scores, n, cap)
    if how == MASKED:
        factor = slope(head, rec.ne(node, 1, 2), rec.fparam(node, 1))
        add_mask(node, head, i3, query, live, first, n, factor, scores)
    alpha = weigh(scores, n, state, state + 64)
    add_values(scores, vals, n, dv, alpha, qt + 64 * d)


@kernel
def flash_attn_tile(node, ith, nth, sync, k_type, v_type):
    """Parameters: scale, max_bias, softcap, tables of keys and of values, heads a chunk.

    The heads of a chunk share their keys and values, which are made float32 once for all of them.
    """
    d, n_q, n_head = rec.ne(node, 1, 0), rec.ne(node, 1, 1), rec.ne(node, 1, 2)
    n_kv, dv, heads = rec.ne(node, 2, 1), rec.ne(node, 3, 0), rec.param(node, 5)
    k_stride, v_stride = rec.nb(node, 2, 1), rec.nb(node, 3, 1)
    scratch = rec.private(node, ith)
    scores = scratch + values.SCRATCH
    keys = scores + 64 * (BLOCK + KEYS)
    vals = keys + BLOCK * room(d)
    states, state_size = vals + BLOCK * room(dv), 128 + 64 * (d + dv)
    tiles, groups = (n_q + LANES - 1) // LANES, n_head // heads
    n_chunks = tiles * groups * rec.ne(node, 1, 3)
    chunk = next_chunk(node, sync)
    while chunk < n_chunks:
        tile, rest = tiles - 1 - chunk % tiles, chunk // tiles  # the longest first
        head, i3, query = rest % groups * heads, rest // groups, tile * LANES
        live = min(LANES, n_q - query)
        for h in range(heads):
            start_head(node, head + h, i3, query, live, states + h * state_size)
        k_rows, v_rows = plane(node, 2, head, i3), plane(node, 3, head, i3)
        for first in range(0, n_kv, BLOCK):
            n = min(BLOCK, n_kv - first)
            how = classify(node, head, i3, query, live, first, n)
            if how == SKIP:
                continue
            if how == MASKED:
                n = shown(node, head, i3, query, live, first, n)
            rows_to_f32(
                k_type, k_rows + first * k_stride, k_stride, n, d, keys, scratch, rec.param(node, 3)
            )
            rows_to_f32(
                v_type,
                v_rows + first * v_stride,
                v_stride,
                n,
                dv,
                vals,
                scratch,
                rec.param(node, 4),
            )
            for h in range(heads):
                state = states + h * state_size
                meet_block(
                    node, head + h, i3, query, live, first, n, how, keys, vals, scores, state
                )
        for h in range(heads):
            state = states + h * state_size
            finish(node, head + h, i3, query, live, state, state + 64, state + 128 + 64 * d)
        chunk = next_chunk(node, sync)


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    read = sources(node)
    if read is None or read.q.ne[1] <= FEW:
        return None
    d, dv = read.q.ne[0], read.v.ne[0]
    private = values.SCRATCH + 64 * (BLOCK + KEYS) + BLOCK * (padded(d) + padded(dv))
    private += read.heads * (128 + 64 * (d + dv))
    params = (*read.params, read.heads)
    return [Step(flash_attn_tile, read.tensors(node), params, read.types, private=private)]
