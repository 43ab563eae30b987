"""Text that remembers, character by character, what the user wrote and what the template wrote.

Plain `str` is the template's. `Text` is a str with a mask: 1 where a character is the user's. Its
methods give the same text as those of str, with the mask carried along; where that cannot be told,
all of the result counts as the user's, which is the safe side (it is never read as special tokens).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

USER, TEMPLATE = b"\1", b"\0"
RUNS = re.compile(rb"\x00+|\x01+")


class Text(str):
    """A str with `mask`, one byte a character: 1 is the user's. Without a mask all of it is."""

    mask: bytes
    __slots__ = ("mask",)

    def __new__(cls, text: str, mask: bytes | None = None) -> Text:
        self = super().__new__(cls, text)
        self.mask = USER * len(text) if mask is None else mask
        return self

    def __str__(self) -> str:
        return self

    def __getitem__(self, key: SupportsIndex | slice) -> Text:
        if not isinstance(key, slice):
            one = super().__getitem__(key)
            return Text(one, bytes([self.mask[key]]))
        return Text(super().__getitem__(key), self.mask[key])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __add__(self, other: str) -> str:
        return concat([self, other]) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return concat([other, self]) if isinstance(other, str) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> Text:
        return Text(super().__mul__(times), self.mask * times.__index__())

    __rmul__ = __mul__

    def lstrip(self, chars: str | None = None) -> Text:
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> Text:
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> Text:
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> Text:
        return self[len(prefix) :] if self.startswith(prefix) else self

    def removesuffix(self, suffix: str) -> Text:
        return self[: len(self) - len(suffix)] if self.endswith(suffix) else self

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._pieces(super().rsplit(sep, maxsplit), sep)

    def _pieces(self, pieces: Iterable[str], sep: str | None) -> list[str]:
        """Find the pieces of a split again, from left to right."""
        found: list[str] = []
        at = 0
        for piece in pieces:
            if sep is None:
                at = super().find(piece, at)
            found.append(self[at : at + len(piece)])
            at += len(piece) + (len(sep) if sep else 0)
        return found

    def splitlines(self, keepends: bool = False) -> list[str]:
        found: list[str] = []
        at = 0
        for line in super().splitlines(True):
            kept = line if keepends else line.splitlines()[0]
            found.append(self[at : at + len(kept)])
            at += len(line)
        return found

    def partition(self, sep: str) -> tuple[str, str, str]:
        at = super().find(sep)
        if at < 0:
            return self, "", ""
        return self[:at], self[at : at + len(sep)], self[at + len(sep) :]

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        at = super().rfind(sep)
        if at < 0:
            return "", "", self
        return self[:at], self[at : at + len(sep)], self[at + len(sep) :]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return Text(super().replace(old, new, count))
        return join(new, self.split(old, count))

    def join(self, items: Iterable[str]) -> str:
        return join(self, items)

    def center(self, width: SupportsIndex, fill: str = " ") -> Text:
        padding = max(width.__index__() - len(self), 0)
        left = padding // 2 + (padding & width.__index__() & 1)
        return self._padded(super().center(width, fill), left)

    def ljust(self, width: SupportsIndex, fill: str = " ") -> Text:
        return self._padded(super().ljust(width, fill), 0)

    def rjust(self, width: SupportsIndex, fill: str = " ") -> Text:
        text = super().rjust(width, fill)
        return self._padded(text, len(text) - len(self))

    def _padded(self, text: str, left: int) -> Text:
        right = len(text) - len(self) - left
        return Text(text, TEMPLATE * left + self.mask + TEMPLATE * right)

    def upper(self) -> Text:
        return self._cased(super().upper(), str.upper)

    def lower(self) -> Text:
        return self._cased(super().lower(), str.lower)

    def casefold(self) -> Text:
        return self._cased(super().casefold(), str.casefold)

    def swapcase(self) -> Text:
        return self._cased(super().swapcase(), str.swapcase)

    def title(self) -> Text:
        return self._cased(super().title(), None)

    def capitalize(self) -> Text:
        return self._cased(super().capitalize(), None)

    def _cased(self, text: str, of_one: Any) -> Text:
        """The mask of text in another case; a character may become several, never fewer."""
        if len(text) == len(self):
            return Text(text, self.mask)
        if of_one is None:
            return Text(text)
        pairs = zip(str.__iter__(self), self.mask)
        return Text(text, b"".join(bytes([m]) * len(of_one(c)) for c, m in pairs))


def mask_of(text: str) -> bytes:
    """The mask of any text: a plain str is the template's, an unknown kind of str the user's."""
    if isinstance(text, Text):
        return text.mask
    return (TEMPLATE if type(text) is str else USER) * len(text)


def concat(parts: Iterable[str]) -> str:
    """ "".join with masks; a plain str if all parts are."""
    parts = list(parts)
    text = "".join(parts)
    if all(type(part) is str for part in parts):
        return text
    return Text(text, b"".join(map(mask_of, parts)))


def join(separator: str, items: Iterable[str]) -> str:
    """separator.join with masks."""
    parts: list[str] = []
    for item in items:
        parts += [separator, item]
    return concat(parts[1:])


def has_user_text(value: Any) -> bool:
    """Whether a value is or contains text of the user."""
    if isinstance(value, str):
        return 1 in mask_of(value)
    if isinstance(value, Mapping):
        return any(has_user_text(k) or has_user_text(v) for k, v in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(map(has_user_text, value))
    return False


def holds(value: Any, text: str) -> bool:
    """Whether that very object `text` is `value` or in it."""
    if isinstance(value, Mapping):
        return any(holds(k, text) or holds(v, text) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return any(holds(item, text) for item in value)
    return value is text


def spans(text: str) -> list[tuple[str, bool]]:
    """Cut at the borders: [(text, is it the template's)]; the parts join to the whole."""
    runs = RUNS.finditer(mask_of(text))
    return [(str.__getitem__(text, slice(*run.span())), run[0][0] == 0) for run in runs]
