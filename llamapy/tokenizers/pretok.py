"""Cut a text into the pieces that byte-pair merging never crosses, as llama.cpp does.

llama.cpp runs its patterns on "collapsed" text (one character for each category above ASCII, so
that case is known in ASCII only) or, when a pattern names no category, on the code points. Each
pattern works inside the pieces of the one before, and what lies between two matches is a piece too.
Here both kinds run on Python's `re`, and llama.cpp's hand-written splitters are patterns over the
collapsed alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import cache
from itertools import chain

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.pretok_rules import BY_NAME, PreTokenizer

Split = Callable[[str], Iterable[str]]

# members of a category in collapsed text, written for use inside [...]
CLASSES = {
    r"\p{N}": "0-9\xd1",
    r"\p{L}": "A-Za-z\xd2",
    r"\p{L'}": "\xd2",  # letters above ASCII only
    r"\p{P}": r"!-#%-*,-/:-;?-@\[-\]_\{\}" + "\xd3",
    r"\p{M}": "\xd4",
    r"\p{S}": r"\$\+<->\^`\|~" + "\xd5",
}
_CATEGORY = re.compile(r"\\p\{\w'?\}")

_SHORT = "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_NOT_HAN = "A-Za-z\xd2"

# llama.cpp's hand-written splitters; each covers its whole text
SPLITTERS = {
    "gpt2": r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_OTHER}|{_END}",
    "qwen2": rf"{_SHORT}|{_WORD}|\p{{N}}|{_OTHER}|{_END}",
    "qwen35": rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_END}",
    "kimi-k2": "[\xd6\xd7]+"
    rf"|[^\r\n\p{{L}}\p{{N}}\xd6]?[{_NOT_HAN}]+(?:{_SHORT})?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}\xd6]+[\r\n]*|{_END}",
    "newlines": r"[^\n]+|\n+",
}
SPACE = "\u2581"
_WORD_STARTS = re.compile(f"{SPACE}?[^{SPACE}]+|{SPACE}")


def rules(name: str) -> PreTokenizer:
    """The rule set of `tokenizer.ggml.pre`; "" is "default". TokenizerError if there is none."""
    try:
        return BY_NAME[name or "default"]
    except KeyError:
        raise TokenizerError(
            f"unknown pre-tokenizer {name!r} in tokenizer.ggml.pre",
            hint="choose one with --pre, for example llama-bpe, qwen2, gpt-2 or default",
        ) from None


def expand(pattern: str) -> str:
    """`pattern` with its categories replaced by their members in collapsed text."""
    parts, inside, at = [], False, 0
    while at < len(pattern):
        category = _CATEGORY.match(pattern, at)
        if category:
            members = CLASSES[category[0]]
            parts.append(members if inside else f"[{members}]")
            at = category.end()
            continue
        step = 2 if pattern[at] == "\\" else 1
        if step == 1 and pattern[at] in "[]":
            inside = pattern[at] == "[" or (inside and pattern[at] != "]")
        parts.append(pattern[at : at + step])
        at += step
    return "".join(parts)


def _digits(text: str) -> list[str]:
    """Cut runs of digits into threes from the right; text before a run joins its first group."""
    pieces, done = [], 0
    for run in _digit_runs().finditer(text):
        start, end = run.span()
        cut = start + ((end - start) % 3 or 3)
        while cut <= end:
            pieces.append(text[done:cut])
            done, cut = cut, cut + 3
    if done < len(text):
        pieces.append(text[done:])
    return pieces


def _thousands(text: str) -> list[str]:
    r"""Cut before each group of three ASCII digits, counted from the end of their run.

    This is the pattern (?=(\d{3})+(?!\d)), which takes quadratic time on a long run.
    """
    pieces, done = [], 0
    for run in re.finditer("[0-9]+", text):
        start, end = run.span()
        for cut in range(start + (end - start) % 3, end, 3):
            if cut > done:
                pieces.append(text[done:cut])
                done = cut
    if done < len(text):
        pieces.append(text[done:])
    return pieces


@cache
def _digit_runs() -> re.Pattern[str]:
    return re.compile(expand(r"\p{N}+"), re.ASCII)


@cache
def splitter(pattern: str) -> tuple[Split, bool]:
    """A pattern as a function from a piece to its pieces; does it run on collapsed text?"""
    if pattern in ("@digits", "@thousands"):
        return (_digits if pattern == "@digits" else _thousands), True
    if pattern.startswith("@"):
        return re.compile(expand(SPLITTERS[pattern[1:]]), re.ASCII).findall, True
    collapsed = _CATEGORY.search(pattern) is not None
    split = re.compile(f"({expand(pattern) if collapsed else pattern})", re.ASCII).split
    return lambda piece: filter(None, split(piece)), collapsed


def _cut_like(text: str, pieces: list[str]) -> list[str]:
    """Cut `text` at the places where `pieces` of another form of it are cut."""
    at, cut = 0, []
    for piece in pieces:
        end = at + len(piece)
        cut.append(text[at:end])
        at = end
    return cut


class Splitter:
    """The splitter of one rule set: `split(text)` gives its pieces, which joined are the text."""

    def __init__(self, rule_set: PreTokenizer) -> None:
        self.rules = rule_set
        self._han = rule_set.patterns == ("@kimi-k2",)

    def split(self, text: str) -> list[str]:
        """Pieces of `text`; with word_starts a U+2581 is put before pieces that have none."""
        pieces = current = None
        forms: dict[bool, str] = {}
        for pattern in self.rules.patterns:
            split, collapsed = splitter(pattern)
            if collapsed not in forms:
                forms[collapsed] = (
                    unicode.collapse(text, han=self._han)
                    if collapsed
                    else unicode.plain_white(text)
                )
            form = forms[collapsed]
            if pieces is None:
                pieces = [form]
            elif form is not current:
                pieces = _cut_like(form, pieces)
            current = form
            pieces = list(chain.from_iterable(map(split, pieces)))
        assert pieces is not None
        if current is not text:
            pieces = _cut_like(text, pieces)
        return _split_at_spaces(pieces) if self.rules.word_starts else pieces


def _split_at_spaces(pieces: list[str]) -> list[str]:
    words: list[str] = []
    for piece in pieces:
        if piece.strip("\n"):
            words += _WORD_STARTS.findall(piece if piece[0] == SPACE else SPACE + piece)
        else:
            words.append(piece)
    return words
