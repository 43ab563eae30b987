"""Words met before with their ids: natural text repeats its words, so most need no work."""

from __future__ import annotations

from collections.abc import Callable

LONGEST_KEPT = 64  # characters; longer words are seldom met again
MOST_KEPT = 200_000


class KnownWords(dict[str, list[int]]):
    """Word -> ids; `encode` makes those of a word that is new."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(word) <= LONGEST_KEPT:
            if len(self) >= MOST_KEPT:
                self.clear()
            self[word] = ids
        return ids
