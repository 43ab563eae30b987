"""The compiled way to split long texts: Splitter's pieces as bounds, without a string for each.

Patterns that have no compiled form run on Python's `re` as ever.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from llamapy.tokenizers import pretok, split_kernels, unicode
from llamapy.tokenizers.long_texts import Bounds
from llamapy.tokenizers.pretok_rules import PreTokenizer
from llamapy.tokenizers.split_kernels import (
    AFTER_WORD,
    ANY_CASE,
    BREAK,
    EXACT,
    HAN,
    LEAD,
    NUMBER,
    SOLID,
    WHITE,
    WORD,
    Style,
)

STYLES = {
    "@gpt2": Style(shorts=EXACT, lead=0, digits=0, breaks=0),
    "@llama3": Style(shorts=ANY_CASE, lead=1, digits=3, breaks=1),
    "@qwen2": Style(shorts=ANY_CASE, lead=1, digits=1, breaks=1),
    "@qwen35": Style(shorts=ANY_CASE, lead=1, digits=1, breaks=1),
    "@kimi-k2": Style(shorts=ANY_CASE | AFTER_WORD, lead=1, digits=3, breaks=1),
}
REMEMBERED = 32  # characters
_ONE_CLASS = re.compile(r"(\\p\{\w\}|\[(?:[^\\\]]|\\.)+\])(\+|\{(\d),(\d)\}|)$")


def long_bounds(rules: PreTokenizer, text: str) -> Bounds:
    """Bounds of the pieces of Splitter.split(text) in code points, [pieces + 1]; no word_starts."""
    assert not rules.word_starts  # which adds characters
    flat = unicode.collapse(text, han=rules.patterns == ("@kimi-k2",))
    codes = np.frombuffer(flat.encode("latin-1") + b"\0", np.uint8)
    cuts: Bounds = np.array([0, len(text)] if text else [0], np.int64)
    for pattern in rules.patterns:
        if is_compiled(pattern):
            cuts = _split(pattern, codes, cuts)
        else:
            split, collapsed = pretok.splitter(pattern)
            form = flat if collapsed else unicode.plain_white(text)
            lengths, ends = _Lengths(split), cuts.tolist()
            parts = (lengths[form[a:b]] for a, b in zip(ends, ends[1:]))
            cuts = np.fromiter(accumulate(chain.from_iterable(parts), initial=0), np.int64)
    return cuts


class _Lengths(dict[str, tuple[int, ...]]):
    """Lengths of the pieces that a text splits into; those of short texts are remembered."""

    def __init__(self, split: pretok.Split) -> None:
        self._split = split

    def __missing__(self, text: str) -> tuple[int, ...]:
        lengths = tuple(map(len, self._split(text)))
        if len(text) <= REMEMBERED:
            self[text] = lengths
        return lengths


def _split(pattern: str, codes: NDArray[np.uint8], cuts: Bounds) -> Bounds:
    new = np.empty(len(codes) + 1, np.int64)
    text, places = codes.ctypes.data, (cuts.ctypes.data, len(cuts) - 1)
    if pattern in STYLES:
        flags = _word_flags(pattern)
        style = STYLES[pattern]
        n = split_kernels.split_words(text, flags.ctypes.data, *places, style, new.ctypes.data)
    elif pattern == "@digits":
        flags, _, _ = _class_flags(r"\p{N}")
        n = split_kernels.split_digits(text, flags.ctypes.data, *places, new.ctypes.data)
    elif pattern == "@newlines":
        flags, least, most = _class_flags(r"[\n]+")
        n = split_kernels.isolate(text, flags.ctypes.data, *places, least, most, new.ctypes.data)
    else:
        flags, least, most = _class_flags(pattern)
        n = split_kernels.isolate(text, flags.ctypes.data, *places, least, most, new.ctypes.data)
    return new[: n + 1]


def is_compiled(pattern: str) -> bool:
    """True if a pattern has a compiled form."""
    special = pattern in STYLES or pattern in ("@digits", "@newlines")
    return special or (pattern.isascii() and _ONE_CLASS.match(pattern) is not None)


@cache
def _class_flags(pattern: str) -> tuple[NDArray[np.uint8], int, int]:
    """Flag 1 for the members of a pattern's class in collapsed text; least and most of them."""
    match = _ONE_CLASS.match(pattern)
    assert match is not None
    least, most = {"": (1, 1), "+": (1, 1 << 40)}.get(match[2]) or (int(match[3]), int(match[4]))
    return _members(match[1]).astype(np.uint8), least, most


def _members(one_class: str) -> NDArray[np.bool_]:
    pattern = re.compile(pretok.expand(one_class), re.ASCII)
    return np.array([pattern.match(chr(code)) is not None for code in range(256)])


@cache
def _word_flags(pattern: str) -> NDArray[np.uint8]:
    """Flags of split_kernels for each byte of collapsed text."""
    letter, number, mark = (_members(rf"\p{{{name}}}") for name in "LNM")
    white, line_break = _members(r"[\s]"), _members(r"[\r\n]")
    if pattern == "@qwen35":
        letter = letter | mark
    han_letter = _members(f"[{unicode.HAN_LETTER_CHAR}]") if pattern == "@kimi-k2" else 0
    han = _members("[\xd6\xd7]") if pattern == "@kimi-k2" else 0
    lead = ~(letter | number | line_break | han_letter)
    flags = (
        WORD * letter
        + NUMBER * number
        + SOLID * (letter | number | white | han_letter)
        + WHITE * white
        + BREAK * line_break
        + HAN * han
        + LEAD * lead
    )
    return np.asarray(flags, np.uint8)
