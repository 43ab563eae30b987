"""Compiled: joining neighbours by rank, the heart of byte-pair and SentencePiece vocabularies.

The plain twin is merge.py. Tables and texts are given by address; see kernels.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llamapy.native import compiled, mem
from llamapy.tokenizers.kernels import (
    byte_at,
    character_length,
    find,
    int_at,
    mix,
    seen_before,
)

NEVER = 0x7FFFFFFF  # a rank that is none
SCAN = 40  # up to this many symbols a search for the least rank beats a heap

# how two neighbours find their rank
BY_PAIR = 0  # in a table of pairs of symbols
BY_TEXT = 1  # by the text that they form


class Pairs(NamedTuple):
    """Addresses of pairs of symbols that join; keys are (left + 1) << 32 | right, 0 a free slot."""

    keys: int  # i64 [mask + 1]
    ranks: int  # i32 [mask + 1]
    joined: int  # i32 [mask + 1]
    mask: int


class Symbols(NamedTuple):
    """How bytes become symbols and symbols tokens; all but the last two are addresses."""

    first: int  # i32 [256]: symbol of each byte, -1 for none, -2 if it starts a longer character
    encoded: int  # u8 [256, 2]: the byte's character in a byte-encoded vocabulary
    n_encoded: int  # i32 [256]: length of that
    rest: int  # i32 [256, 2]: tokens of a byte that is in no token, -1 for none
    ranks: int  # i32 [n_tokens]: rank of each token, for BY_TEXT
    byte_encoded: int
    n_tokens: int


class Work(NamedTuple):
    """Addresses of room for the longest word: n symbols, and one more where marked +."""

    sym: int  # i32 [n +]
    beg: int  # i64 [n +]: where the symbol begins, -1 once it is joined to its left
    rank: int  # i32 [n +]: of joining with the next symbol
    new: int  # i32 [n +]: what that gives
    after: int  # i32 [n +]
    before: int  # i32 [n +]
    heap: int  # i64 [3 n]
    encoded: int  # u8 [2 * longest text]
    n_encoded: int  # size of `encoded`
    seen: int  # i32 [seen_mask + 1]: a word's number or -1
    seen_mask: int


@compiled
def join(mode, data, begin, end, left, right, strings, pairs, symbols):
    """(rank, symbol) of joining two neighbours whose texts together are data[begin:end]."""
    if mode == BY_TEXT:
        number = find(strings, data, begin, end)
        if number < 0:
            return NEVER, -1
        return int_at(symbols.ranks, number), number
    if left < 0 or right < 0:
        return NEVER, -1
    key = (left + 1) << 32 | right
    slot = mix(key) & pairs.mask
    while True:
        held = mem.i64(pairs.keys, slot)
        if held == key:
            return int_at(pairs.ranks, slot), int_at(pairs.joined, slot)
        if held == 0:
            return NEVER, -1
        slot = (slot + 1) & pairs.mask


@compiled
def set_join(mode, data, i, j, end, strings, pairs, symbols, work):
    """Set rank and result of joining symbols i and j, which lie before `end`; the rank."""
    rank, new = join(
        mode,
        data,
        mem.i64(work.beg, i),
        end,
        int_at(work.sym, i),
        int_at(work.sym, j),
        strings,
        pairs,
        symbols,
    )
    mem.put_i32(work.rank, i, rank)
    mem.put_i32(work.new, i, new)
    return rank


@compiled
def whole_word(data, start, end, strings, symbols, work):
    """Number of the word as one text, or -1."""
    if symbols.byte_encoded == 0:
        return find(strings, data, start, end)
    if 2 * (end - start) > work.n_encoded:
        return -1
    n = np.int64(0)
    for i in range(start, end):
        byte = byte_at(data, i)
        for k in range(int_at(symbols.n_encoded, byte)):
            mem.put_u8(work.encoded, n, byte_at(symbols.encoded, 2 * byte + k))
            n += 1
    return find(strings, work.encoded, np.int64(0), n)


@compiled
def split_symbols(data, start, end, strings, symbols, work):
    """Set the first symbols of a word and where they begin; their number."""
    n = np.int64(0)
    at = start
    while at < end:
        byte = byte_at(data, at)
        number = int_at(symbols.first, byte)
        length = 1
        if number == -2:
            length = min(character_length(byte), end - at)
            number = find(strings, data, at, at + length)
        mem.put_i32(work.sym, n, number)
        mem.put_i64(work.beg, n, at)
        n += 1
        at += length
    mem.put_i64(work.beg, n, end)
    return n


@compiled
def join_short(mode, data, n, strings, pairs, symbols, work):
    """Join the `n` symbols in place, searching for the least rank each time; how many remain."""
    for i in range(n - 1):
        set_join(mode, data, i, i + 1, mem.i64(work.beg, i + 2), strings, pairs, symbols, work)
    while n > 1:
        best, at = NEVER, -1
        for i in range(n - 1):
            if int_at(work.rank, i) < best:
                best, at = int_at(work.rank, i), i
        if at < 0:
            break
        mem.put_i32(work.sym, at, int_at(work.new, at))
        n -= 1
        for i in range(at + 1, n):
            mem.put_i32(work.sym, i, int_at(work.sym, i + 1))
        for i in range(at + 1, n + 1):
            mem.put_i64(work.beg, i, mem.i64(work.beg, i + 1))
        for i in range(at, n - 1):
            mem.put_i32(work.rank, i, int_at(work.rank, i + 1))
            mem.put_i32(work.new, i, int_at(work.new, i + 1))
        for i in range(max(at - 1, 0), min(at + 1, n - 1)):
            set_join(mode, data, i, i + 1, mem.i64(work.beg, i + 2), strings, pairs, symbols, work)
    return n


@compiled
def sink(heap, n, at):
    """Restore the heap of `n` below `at`."""
    key = mem.i64(heap, at)
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and mem.i64(heap, child + 1) < mem.i64(heap, child):
            child += 1
        if mem.i64(heap, child) >= key:
            break
        mem.put_i64(heap, at, mem.i64(heap, child))
        at = child
    mem.put_i64(heap, at, key)


@compiled
def push(heap, n, key):
    """Add a key to a heap of `n`."""
    at = n
    while at > 0 and mem.i64(heap, (at - 1) >> 1) > key:
        mem.put_i64(heap, at, mem.i64(heap, (at - 1) >> 1))
        at = (at - 1) >> 1
    mem.put_i64(heap, at, key)


@compiled
def start_heap(mode, data, n, strings, pairs, symbols, work):
    """Link the `n` symbols and heap up those that join with the next one; how many these are."""
    size = np.int64(0)
    for i in range(n):
        mem.put_i32(work.after, i, i + 1)
        mem.put_i32(work.before, i, i - 1)
        mem.put_i32(work.rank, i, NEVER)
        if i < n - 1:
            stop = mem.i64(work.beg, i + 2)
            rank = set_join(mode, data, i, i + 1, stop, strings, pairs, symbols, work)
            if rank != NEVER:
                mem.put_i64(work.heap, size, rank << 32 | i)
                size += 1
    for i in range(size // 2 - 1, -1, -1):
        sink(work.heap, size, i)
    return size


@compiled
def join_long(mode, data, n, strings, pairs, symbols, work):
    """Join the `n` symbols in place with a heap of (rank, place); how many remain."""
    size = start_heap(mode, data, n, strings, pairs, symbols, work)
    while size > 0:
        key = mem.i64(work.heap, 0)
        size -= 1
        mem.put_i64(work.heap, 0, mem.i64(work.heap, size))
        sink(work.heap, size, np.int64(0))
        left = key & 0xFFFFFFFF
        if int_at(work.rank, left) != key >> 32:
            continue  # one of the two has been joined since
        right = int_at(work.after, left)
        beyond = int_at(work.after, right)
        mem.put_i32(work.sym, left, int_at(work.new, left))
        mem.put_i32(work.rank, left, NEVER)
        mem.put_i32(work.rank, right, NEVER)
        mem.put_i64(work.beg, right, -1)
        mem.put_i32(work.after, left, beyond)
        if beyond < n:
            mem.put_i32(work.before, beyond, left)
            stop = mem.i64(work.beg, int_at(work.after, beyond))
            rank = set_join(mode, data, left, beyond, stop, strings, pairs, symbols, work)
            if rank != NEVER:
                push(work.heap, size, rank << 32 | left)
                size += 1
        i = int_at(work.before, left)
        if i >= 0:
            stop = mem.i64(work.beg, beyond)
            rank = set_join(mode, data, i, left, stop, strings, pairs, symbols, work)
            if rank != NEVER:
                push(work.heap, size, rank << 32 | i)
                size += 1
    return close_gaps(n, work)


@compiled
def close_gaps(n, work):
    """Move the symbols that remain together; their number."""
    kept = 0
    for i in range(n + 1):
        if mem.i64(work.beg, i) >= 0:
            mem.put_i32(work.sym, kept, int_at(work.sym, i))
            mem.put_i64(work.beg, kept, mem.i64(work.beg, i))
            kept += 1
    return kept - 1


@compiled
def emit(data, n, symbols, work, out, m):
    """Write the tokens of `n` symbols to out[m:]; the new m."""
    for i in range(n):
        sym = int_at(work.sym, i)
        if 0 <= sym < symbols.n_tokens:
            mem.put_i32(out, m, sym)
            m += 1
            continue
        for at in range(mem.i64(work.beg, i), mem.i64(work.beg, i + 1)):
            for k in range(2):
                token = int_at(symbols.rest, 2 * byte_at(data, at) + k)
                if token != -1:
                    mem.put_i32(out, m, token)
                    m += 1
    return m


@compiled
def encode_word(mode, whole, data, start, end, strings, pairs, symbols, work, out, m):
    """Write the tokens of one word to out[m:]; the new m."""
    look = whole == 1
    if whole == 2:
        look = True
        for i in range(start, end):
            look = look and byte_at(data, i) == 10
    if look:
        token = whole_word(data, start, end, strings, symbols, work)
        if 0 <= token < symbols.n_tokens:
            mem.put_i32(out, m, token)
            return m + 1
    n = split_symbols(data, start, end, strings, symbols, work)
    if n <= SCAN:
        n = join_short(mode, data, n, strings, pairs, symbols, work)
    else:
        n = join_long(mode, data, n, strings, pairs, symbols, work)
    return emit(data, n, symbols, work, out, m)


@compiled
def encode_words(mode, whole, data, bounds, n_words, strings, pairs, symbols, work, out, ends):
    """Ids of words into `out`, and where each word's end there into ends[1:]; at most two a byte.

    Word i is data[bounds[i]:bounds[i + 1]]. whole: 1 looks every word up as one token first, 2
    those that consist of newlines.
    """
    m = np.int64(0)
    mem.put_i64(ends, 0, m)
    for w in range(n_words):
        other = seen_before(data, bounds, w, work.seen, work.seen_mask)
        if other >= 0:
            for i in range(mem.i64(ends, other), mem.i64(ends, other + 1)):
                mem.put_i32(out, m, int_at(out, i))
                m += 1
        else:
            start, end = mem.i64(bounds, w), mem.i64(bounds, w + 1)
            m = encode_word(mode, whole, data, start, end, strings, pairs, symbols, work, out, m)
        mem.put_i64(ends, w + 1, m)
    return m
