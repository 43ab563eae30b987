"""Compiled: filling the tables of join_kernels.py, and cutting texts where nothing joins."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, mem
from llamapy.tokenizers.kernels import byte_at, character_length, hashed, insert, int_at, mix


@compiled
def index_bytes(strings, n, first, count):
    """Enter the texts n..n + count, which stand for bytes 0..count; the next free number."""
    free = n
    for byte in range(count):
        mem.put_i64(strings.starts, free, mem.i64(strings.starts, n + byte))
        mem.put_i32(strings.lengths, free, int_at(strings.lengths, n + byte))
        number = insert(strings, free)
        mem.put_i32(first, byte, number)
        if number == free:
            free += 1
    return free


@compiled
def index_pairs(strings, n, n_merges, starts, lefts, lengths, pairs):
    """Fill `pairs` from merges in order of rank; symbols that are new get numbers from `n` on.

    Merge i is strings.data[starts[i]:][:lengths[i]], its left part has lefts[i] bytes (0: none).
    """
    for rank in range(n_merges):
        left = int_at(lefts, rank)
        if left == 0:
            continue
        at, total = mem.i64(starts, rank), int_at(lengths, rank)
        a, n = number_of(strings, n, at, left)
        b, n = number_of(strings, n, at + left, total - left)
        key = (a + 1) << 32 | b
        slot = mix(key) & pairs.mask
        while mem.i64(pairs.keys, slot) != 0 and mem.i64(pairs.keys, slot) != key:
            slot = (slot + 1) & pairs.mask
        if mem.i64(pairs.keys, slot) == 0:
            whole, n = number_of(strings, n, at, total)
            mem.put_i64(pairs.keys, slot, key)
            mem.put_i32(pairs.ranks, slot, rank)
            mem.put_i32(pairs.joined, slot, whole)
    return n


@compiled
def number_of(strings, n, start, length):
    """The number of strings.data[start:][:length], entered as `n` if it is new; the next `n`."""
    mem.put_i64(strings.starts, n, start)
    mem.put_i32(strings.lengths, n, length)
    number = insert(strings, n)
    return number, n + (number == n)


@compiled
def pair_bit(data, start, middle, end):
    """A number below 2 ** 22 for two neighbouring characters."""
    return (hashed(data, start, middle) * 31 + hashed(data, middle, end)) >> 7 & 0x3FFFFF


@compiled
def mark_neighbours(strings, n, marks):
    """Set a bit of `marks` (2 ** 22 bits) for each pair of characters within texts 0..n."""
    for number in range(n):
        at = mem.i64(strings.starts, number)
        end = at + int_at(strings.lengths, number)
        while at < end:
            middle = min(at + character_length(byte_at(strings.data, at)), end)
            if middle == end:
                break
            stop = min(middle + character_length(byte_at(strings.data, middle)), end)
            bit = pair_bit(strings.data, at, middle, stop)
            mem.put_u8(marks, bit >> 3, byte_at(marks, bit >> 3) | 1 << (bit & 7))
            at = middle


@compiled
def cut_apart(data, bounds, n_words, marks, cuts):
    """Bounds of words cut between neighbours that no text has in it; how many parts there are."""
    n = np.int64(0)
    for w in range(n_words):
        at, end = mem.i64(bounds, w), mem.i64(bounds, w + 1)
        mem.put_i64(cuts, n, at)
        n += 1
        middle = min(at + character_length(byte_at(data, at)), end) if at < end else end
        while middle < end:
            stop = min(middle + character_length(byte_at(data, middle)), end)
            bit = pair_bit(data, at, middle, stop)
            if not byte_at(marks, bit >> 3) >> (bit & 7) & 1:
                mem.put_i64(cuts, n, middle)
                n += 1
            at, middle = middle, stop
    mem.put_i64(cuts, n, mem.i64(bounds, n_words))
    return n
