"""Compiled: texts found by hash, and what all loops over long texts share.

Texts and tables are given by address, and nothing is checked here: `long_texts.py` makes the tables
from what vocab.py has checked. Every loop has a plain twin in the file of its algorithm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llamapy.native import compiled, mem


class Strings(NamedTuple):
    """Addresses of texts with numbers, found by hash: number i is data[starts[i]:][:lengths[i]]."""

    data: int  # u8
    starts: int  # i64 [n]
    lengths: int  # i32 [n]
    table: int  # i32 [mask + 1]: a number or -1
    mask: int
    longest: int  # i32 [256]: length of the longest text by its first byte


@compiled
def int_at(base, i):
    return np.int64(mem.i32(base, i))


@compiled
def byte_at(base, i):
    return np.int64(mem.u8(base, i))


@compiled
def mix(h):
    h = (h ^ (h >> 32)) * -7046029254386353131
    return h ^ (h >> 29)


@compiled
def hashed(data, start, end):
    h = np.int64(0)
    for i in range(start, end):
        h = (h ^ byte_at(data, i)) * 1099511628211
    return mix(h)


@compiled
def equal(a, b, length):
    i = np.int64(0)
    while i < length and byte_at(a, i) == byte_at(b, i):
        i += 1
    return i == length


@compiled
def probe(strings, text, length, h):
    """Number of the text of this length at address `text`, whose hash is `h`; or -1."""
    slot = h & strings.mask
    while True:
        number = int_at(strings.table, slot)
        if number < 0:
            return -1
        start = strings.data + mem.i64(strings.starts, number)
        if int_at(strings.lengths, number) == length and equal(start, text, length):
            return number
        slot = (slot + 1) & strings.mask


@compiled
def find(strings, data, start, end):
    """Number of the text data[start:end], or -1."""
    if end - start > int_at(strings.longest, byte_at(data, start)):
        return -1
    return probe(strings, data + start, end - start, hashed(data, start, end))


@compiled
def insert(strings, number):
    """Enter text `number`; the number that an equal text has already, else `number`."""
    length = int_at(strings.lengths, number)
    if length == 0:
        return number
    start = mem.i64(strings.starts, number)
    h = hashed(strings.data, start, start + length)
    known = probe(strings, strings.data + start, length, h)
    if known >= 0:
        return known
    slot = h & strings.mask
    while int_at(strings.table, slot) >= 0:
        slot = (slot + 1) & strings.mask
    mem.put_i32(strings.table, slot, number)
    byte = byte_at(strings.data, start)
    mem.put_i32(strings.longest, byte, max(int_at(strings.longest, byte), length))
    return number


@compiled
def index(strings, start, end):
    """Enter texts start..end."""
    for number in range(start, end):
        insert(strings, number)


@compiled
def character_length(byte):
    return 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4


@compiled
def seen_before(data, bounds, w, seen, mask):
    """The earlier word that equals word `w`, or -1; then `w` is remembered.

    seen i32 [mask + 1]: numbers of words, -1 at first.
    """
    start = mem.i64(bounds, w)
    length = mem.i64(bounds, w + 1) - start
    slot = hashed(data, start, start + length) & mask
    for _ in range(4):
        other = int_at(seen, slot)
        if other < 0:
            mem.put_i32(seen, slot, w)
            return -1
        begin = mem.i64(bounds, other)
        same_length = mem.i64(bounds, other + 1) - begin == length
        if same_length and equal(data + begin, data + start, length):
            return other
        slot = (slot + 1) & mask
    mem.put_i32(seen, slot, w)
    return -1
