"""Compiled splitters for long texts; their meaning is given by the patterns in pretok.py.

They run on collapsed text: one byte for each code point, whose flags a table tells. Pieces are
given by bounds that count code points, and each loop cuts the pieces of the one before.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llamapy.native import compiled, mem
from llamapy.tokenizers.kernels import byte_at

# what a character is, for the splitters of words
WORD = 1  # a letter that continues a word
NUMBER = 2
SOLID = 4  # letter, number or white space: no part of a run of other characters
WHITE = 8
BREAK = 16  # \r or \n
HAN = 32
LEAD = 64  # may stand before a word

SPACE, QUOTE = 0x20, 0x27
EXACT, ANY_CASE, AFTER_WORD = 1, 2, 4


class Style(NamedTuple):
    """How a splitter of words differs from the others."""

    shorts: int  # contractions like 's: EXACT, ANY_CASE, and AFTER_WORD if only as ends of words
    lead: int  # 1: a LEAD character may stand before letters; 0: a space before any kind of run
    digits: int  # most numbers in a piece; 0 is no limit
    breaks: int  # 1: other characters take the \r and \n that follow; white space ends at the last


@compiled
def short_length(text, at, end, kind):
    """Length of the contraction that starts at `at`, 0 for none."""
    if byte_at(text, at) != QUOTE or at + 1 >= end:
        return 0
    fold = 0x20 if kind & ANY_CASE else 0
    a = byte_at(text, at + 1)
    a = a | fold if a < 0x80 else a
    if a == 0x73 or a == 0x74 or a == 0x6D or a == 0x64:  # s t m d
        return 2
    if at + 2 >= end:
        return 0
    b = byte_at(text, at + 2)
    b = b | fold if b < 0x80 else b
    if ((a == 0x72 or a == 0x76) and b == 0x65) or (a == 0x6C and b == 0x6C):  # re ve ll
        return 3
    return 0


@compiled
def run_end(text, flags, at, end, flag):
    """Where the run of characters with a flag of `flag` ends."""
    while at < end and byte_at(flags, byte_at(text, at)) & flag:
        at += 1
    return at


@compiled
def other_end(text, flags, at, end, breaks):
    """Where a run of other characters ends."""
    while at < end and not byte_at(flags, byte_at(text, at)) & SOLID:
        at += 1
    return run_end(text, flags, at, end, BREAK) if breaks else at


@compiled
def white_end(text, flags, at, end, breaks):
    """Where a piece of white space ends: after its last line break or before its last character."""
    stop = run_end(text, flags, at, end, WHITE)
    if breaks:
        last = stop
        while last > at and not byte_at(flags, byte_at(text, last - 1)) & BREAK:
            last -= 1
        if last > at:
            return last
    return stop - 1 if stop < end and stop - at > 1 else stop


@compiled
def spaced_end(text, flags, at, end, style):
    """Where a piece ends that may start with a space: letters, numbers or others."""
    start = at + (byte_at(text, at) == SPACE)
    if start == end:
        return end
    kind = byte_at(flags, byte_at(text, start))
    if kind & WORD:
        return run_end(text, flags, start, end, WORD)
    if kind & NUMBER:
        return run_end(text, flags, start, end, NUMBER)
    if not kind & SOLID:
        return other_end(text, flags, start, end, style.breaks)
    return white_end(text, flags, at, end, style.breaks)


@compiled
def led_end(text, flags, at, end, style):
    """Where a piece ends whose letters may follow any one character."""
    kind = byte_at(flags, byte_at(text, at))
    if kind & HAN:
        return run_end(text, flags, at, end, HAN)
    after = byte_at(flags, byte_at(text, at + 1)) if at + 1 < end else 0
    if kind & WORD or (kind & LEAD and after & WORD):
        stop = run_end(text, flags, at + 1, end, WORD)
        if style.shorts & AFTER_WORD and stop < end:
            stop += short_length(text, stop, end, style.shorts)
        return stop
    if kind & NUMBER:
        return run_end(text, flags, at, min(end, at + style.digits), NUMBER)
    start = at + (byte_at(text, at) == SPACE)
    if start < end and not byte_at(flags, byte_at(text, start)) & SOLID:
        return other_end(text, flags, start, end, style.breaks)
    return white_end(text, flags, at, end, style.breaks)


@compiled
def split_words(text, flags, bounds, n_pieces, style, cuts):
    """Bounds of pieces split into words; their number."""
    n = np.int64(0)
    for piece in range(n_pieces):
        at, end = mem.i64(bounds, piece), mem.i64(bounds, piece + 1)
        while at < end:
            mem.put_i64(cuts, n, at)
            n += 1
            length = 0
            if style.shorts and not style.shorts & AFTER_WORD:
                length = short_length(text, at, end, style.shorts)
            if length:
                at += length
            elif style.lead:
                at = led_end(text, flags, at, end, style)
            else:
                at = spaced_end(text, flags, at, end, style)
    mem.put_i64(cuts, n, mem.i64(bounds, n_pieces))
    return n


@compiled
def isolate(text, flags, bounds, n_pieces, least, most, cuts):
    """Bounds of pieces with runs of `least` to `most` flagged characters apart; their number."""
    n = np.int64(0)
    for piece in range(n_pieces):
        at, end = mem.i64(bounds, piece), mem.i64(bounds, piece + 1)
        done = at
        mem.put_i64(cuts, n, at)
        n += at < end
        while at < end:
            stop = run_end(text, flags, at, min(end, at + most), 1)
            if stop - at < least:
                at = max(stop, at + 1)
                continue
            if at > done:
                mem.put_i64(cuts, n, at)
                n += 1
            if stop < end:
                mem.put_i64(cuts, n, stop)
                n += 1
            at = done = stop
    mem.put_i64(cuts, n, mem.i64(bounds, n_pieces))
    return n


@compiled
def split_digits(text, flags, bounds, n_pieces, cuts):
    """Bounds of pieces cut after each three numbers, counted from the right; their number."""
    n = np.int64(0)
    for piece in range(n_pieces):
        at, end = mem.i64(bounds, piece), mem.i64(bounds, piece + 1)
        mem.put_i64(cuts, n, at)
        n += at < end
        while at < end:
            stop = run_end(text, flags, at, end, 1)
            cut = at + ((stop - at) % 3 or 3) if stop > at else end
            while cut <= stop and cut < end:
                mem.put_i64(cuts, n, cut)
                n += 1
                cut += 3
            at = max(stop, at + 1)
    mem.put_i64(cuts, n, mem.i64(bounds, n_pieces))
    return n
