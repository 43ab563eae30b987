"""Compiled loops that cover a text with tokens: greedily, or by the best sum of scores.

Addresses and tables as in kernels.py; plain twins are in wpm.py, rwkv.py, ugm.py and plamo2.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from llamapy.native import compiled, mem
from llamapy.tokenizers.kernels import (
    Strings,
    byte_at,
    character_length,
    int_at,
    mix,
    probe,
    seen_before,
)

# what a code point becomes in WordPiece text: the lower 24 bits are its normal form
APART, DROPPED, ALONE = 1 << 24, 1 << 25, 1 << 26

PREFIX, WHOLE = 1, 2  # a text goes on from here; a text ends here
HINTS = (1 << 24) - 1

LOWEST = -1.7976931348623157e308


class Matcher(NamedTuple):
    """Texts to match from a place on: when to stop, and what number each has."""

    strings: Strings
    hints: int  # u8 [2 ** 22]: two bits for each hash, PREFIX and WHOLE


@compiled
def hint_at(hints, h):
    return byte_at(hints, (h & HINTS) >> 2) >> 2 * (h & 3) & 3


@compiled
def hint(strings, n, hints):
    """Note of texts 0..n and of their prefixes that they are there."""
    for number in range(n):
        start, length = mem.i64(strings.starts, number), int_at(strings.lengths, number)
        h = np.int64(0)
        for i in range(length):
            h = (h ^ byte_at(strings.data, start + i)) * 1099511628211
            place = mix(h)
            kind = (WHOLE if i + 1 == length else PREFIX) << 2 * (place & 3)
            at = (place & HINTS) >> 2
            mem.put_u8(hints, at, byte_at(hints, at) | kind)


@compiled
def longest_match(matcher, data, at, end):
    """(number, length) of the longest text that starts at data[at], or (-1, 0)."""
    number, length = np.int64(-1), np.int64(0)
    h, n = np.int64(0), np.int64(0)
    while at + n < end:
        h = (h ^ byte_at(data, at + n)) * 1099511628211
        n += 1
        place = mix(h)
        kind = hint_at(matcher.hints, place)
        if kind & WHOLE:
            found = probe(matcher.strings, data + at, n, place)
            if found >= 0:
                number, length = found, n
        if not kind & PREFIX:
            break
    return number, length


@compiled
def match_words(data, bounds, n_words, matcher, unknown, seen, seen_mask, out, ends):
    """Ids of words covered greedily, `unknown` for one that cannot be; their bounds into `ends`."""
    m = np.int64(0)
    mem.put_i64(ends, 0, m)
    for w in range(n_words):
        other = seen_before(data, bounds, w, seen, seen_mask)
        before = m
        if other >= 0:
            for i in range(mem.i64(ends, other), mem.i64(ends, other + 1)):
                mem.put_i32(out, m, int_at(out, i))
                m += 1
        else:
            at, end = mem.i64(bounds, w), mem.i64(bounds, w + 1)
            while at < end:
                number, length = longest_match(matcher, data, at, end)
                if number < 0:
                    mem.put_i32(out, before, unknown)
                    m = before + 1
                    break
                mem.put_i32(out, m, number)
                m += 1
                at += length
        mem.put_i64(ends, w + 1, m)
    return m


@compiled
def match_text(data, n, matcher, ids, out):
    """Ids of a text covered greedily, -1 for a byte that starts no text; their number."""
    at, m = np.int64(0), np.int64(0)
    while at < n:
        number, length = longest_match(matcher, data, at, n)
        mem.put_i32(out, m, int_at(ids, number) if number >= 0 else -1)
        m += 1
        at += max(length, 1)
    return m


@compiled
def put_character(out, n, code):
    """Write a code point as UTF-8 to out[n:]; the new n."""
    if code < 0x80:
        mem.put_u8(out, n, code)
        return n + 1
    length = 2 if code < 0x800 else 3 if code < 0x10000 else 4
    mem.put_u8(out, n, (0xF00 >> length) & 0xFF | code >> 6 * (length - 1))
    for i in range(1, length):
        mem.put_u8(out, n + i, 0x80 | (code >> 6 * (length - 1 - i)) & 0x3F)
    return n + length


@compiled
def put_mark(out, n):
    """Write U+2581 to out[n:]; the new n."""
    return put_character(out, n, 0x2581)


@compiled
def normal_words(codes, n_codes, table, out, bounds):
    """Write the words of WordPiece text, each behind U+2581, and their bounds; their number."""
    n, words = np.int64(0), np.int64(0)
    open_word = False
    mem.put_i64(bounds, 0, n)
    for i in range(n_codes):
        normal = np.int64(mem.u32(table, np.int64(mem.u32(codes, i))))
        if normal & DROPPED:
            continue
        if open_word and normal & (APART | ALONE):
            words += 1
            mem.put_i64(bounds, words, n)
            open_word = False
        if normal & APART:
            continue
        if not open_word:
            n = put_mark(out, n)
            open_word = True
        n = put_character(out, n, normal & 0xFFFFFF)
        if normal & ALONE:
            words += 1
            mem.put_i64(bounds, words, n)
            open_word = False
    if open_word:
        words += 1
        mem.put_i64(bounds, words, n)
    return words


class Normalizer(NamedTuple):
    """How unigram text is normalized; see ugm.py and charsmap.py."""

    nodes: int  # u32 [n_nodes]: the trie of replaced prefixes
    n_nodes: int
    texts: int  # u8 [n_texts]: replacements, each ended by 0
    n_texts: int
    prefix: int  # 1: a space before the text
    merge: int  # 1: runs of spaces become one, before each word


@compiled
def trie_base(node):
    return (node >> 10) << ((node & 512) >> 6)


@compiled
def replaced(rules, data, at, end):
    """(length, place) of the longest replaced prefix; length -1 if the trie is broken."""
    length, place = np.int64(0), np.int64(0)
    if rules.n_nodes == 0:
        return length, place
    node = trie_base(np.int64(mem.u32(rules.nodes, 0)))
    for i in range(at, end):
        byte = byte_at(data, i)
        node ^= byte
        if byte == 0:
            break
        if node >= rules.n_nodes:
            return np.int64(-1), place
        packed = np.int64(mem.u32(rules.nodes, node))
        if packed & 0x800000FF != byte:
            break
        node ^= trie_base(packed)
        if packed >> 8 & 1:
            if node >= rules.n_nodes:
                return np.int64(-1), place
            length = i + 1 - at
            place = np.int64(mem.u32(rules.nodes, node)) & 0x7FFFFFFF
    return length, place


@compiled
def sequence_length(data, at, end):
    """Bytes of the code point that starts at `at`; 0 if none starts there."""
    lead = byte_at(data, at)
    if lead < 0x80:
        return 1
    length = 0 if lead < 0xC0 or lead >= 0xF8 else character_length(lead)
    if at + length > end:
        return 0
    for i in range(at + 1, at + length):
        if byte_at(data, i) & 0xC0 != 0x80:
            return 0
    return length


@compiled
def kept_prefix(kept, data, at, end):
    """Length of the longest prefix that is among the texts `kept` with all its own prefixes."""
    h, length = np.int64(0), np.int64(0)
    while at + length < end and length < int_at(kept.longest, byte_at(data, at)):
        h = (h ^ byte_at(data, at + length)) * 1099511628211
        if probe(kept, data + at, length + 1, mix(h)) < 0:
            break
        length += 1
    return length


@compiled
def normalize(data, n_bytes, kept, rules, out):
    """Write the normal form of a text to `out`, or only count it if that is 0.

    Its length, or -1 if the replacements are broken.
    """
    at, n = np.int64(0), np.int64(0)
    in_word, prefix = False, rules.prefix
    while at < n_bytes:
        source, length = data + at, kept_prefix(kept, data, at, n_bytes)
        step = length
        if length == 0:
            step, place = replaced(rules, data, at, n_bytes)
            if step < 0:
                return np.int64(-1)
            if step > 0:
                source = rules.texts + place
                while place < rules.n_texts and byte_at(rules.texts, place) != 0:
                    place += 1
                if place >= rules.n_texts:
                    return np.int64(-1)
                length = rules.texts + place - source
            else:
                length = step = sequence_length(data, at, n_bytes)
                if step == 0:
                    step, length = np.int64(1), np.int64(-1)  # a wrong byte: U+FFFD
        at += step
        for i in range(max(length, -length)):
            byte = byte_at(source, i) if length > 0 else 0xFF
            if byte == 0x20:
                in_word = False
                if not rules.merge:
                    if out:
                        put_mark(out, n)
                    n += 3
                continue
            if not in_word:
                in_word = True
                if prefix or rules.merge:
                    if out:
                        put_mark(out, n)
                    n += 3
                    prefix = 0
            if length < 0:
                if out:
                    put_character(out, n, 0xFFFD)
                n += 3
                continue
            if out:
                mem.put_u8(out, n, byte)
            n += 1
    return n


@compiled
def best_cover(data, n, matcher, ids, scores, unknown, unknown_score, best, origin, token, out):
    """Ids of the cover with the greatest sum of scores; their number.

    best f64, origin i64, token i32 [n + 1] are room to work in. A run of unknown characters is one.
    """
    for i in range(n + 1):
        mem.put_f64(best, i, LOWEST)
        mem.put_i64(origin, i, 0)
        mem.put_i32(token, i, unknown)
    mem.put_f64(best, 0, 0.0)
    at = np.int64(0)
    while at < n:
        step = min(character_length(byte_at(data, at)), n - at)
        here, whole = mem.f64(best, at), False
        h, length, kind = np.int64(0), np.int64(0), np.int64(PREFIX)
        while kind & PREFIX and at + length < n:
            h = (h ^ byte_at(data, at + length)) * 1099511628211
            length += 1
            place = mix(h)
            kind = hint_at(matcher.hints, place)
            if not kind & WHOLE:
                continue
            number = probe(matcher.strings, data + at, length, place)
            if number < 0:
                continue
            whole = whole or length == step
            score = here + mem.f64(scores, number)
            if score > mem.f64(best, at + length):
                mem.put_f64(best, at + length, score)
                mem.put_i64(origin, at + length, at)
                mem.put_i32(token, at + length, int_at(ids, number))
        if not whole and here + unknown_score > mem.f64(best, at + step):
            mem.put_f64(best, at + step, here + unknown_score)
            mem.put_i64(origin, at + step, at)
            mem.put_i32(token, at + step, unknown)
        at += step
    m, at = np.int64(0), np.int64(n)
    while at > 0:
        number = int_at(token, at)
        if m == 0 or number != unknown or int_at(out, m - 1) != unknown:
            mem.put_i32(out, m, number)
            m += 1
        at = mem.i64(origin, at)
    for i in range(m // 2):
        number = int_at(out, i)
        mem.put_i32(out, i, int_at(out, m - 1 - i))
        mem.put_i32(out, m - 1 - i, number)
    return m


@compiled
def cheapest_cover(data, n, matcher, ids, scores, unknown, bytes_, cost, length, token, out):
    """Ids of the cover with the least cost, found from its end; their number.

    scores i32: of each text; `unknown` that of a character without one, which becomes its bytes'
    tokens (i32 [256]). cost i64, length i32, token i32 [n + 1] are room to work in.
    """
    mem.put_i64(cost, n, 0)
    at = n - 1
    while at >= 0:
        while at > 0 and byte_at(data, at) & 0xC0 == 0x80:
            at -= 1
        step = min(character_length(byte_at(data, at)), n - at)
        best, best_length, best_token = np.int64(1 << 60), step, np.int64(-1)
        h, size, kind = np.int64(0), np.int64(0), np.int64(PREFIX)
        while kind & PREFIX and at + size < n:
            h = (h ^ byte_at(data, at + size)) * 1099511628211
            size += 1
            place = mix(h)
            kind = hint_at(matcher.hints, place)
            if not kind & WHOLE:
                continue
            number = probe(matcher.strings, data + at, size, place)
            if number >= 0:
                total = mem.i64(cost, at + size) - int_at(scores, number)
                if total <= best:
                    best, best_length, best_token = total, size, int_at(ids, number)
        if mem.i64(cost, at + step) - unknown < best:
            best, best_length = mem.i64(cost, at + step) - unknown, step
            best_token = np.int64(-1)
        mem.put_i64(cost, at, best)
        mem.put_i32(length, at, best_length)
        mem.put_i32(token, at, best_token)
        at -= 1
    m, at = np.int64(0), np.int64(0)
    while at < n:
        number, size = int_at(token, at), int_at(length, at)
        if number >= 0:
            mem.put_i32(out, m, number)
            m += 1
        else:
            for i in range(at, at + size):
                mem.put_i32(out, m, int_at(bytes_, byte_at(data, i)))
                m += 1
        at += size
    return m
