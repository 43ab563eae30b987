"""The compiled way to cover long texts with tokens: makes the tables of `cover_kernels.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from llamapy.tokenizers import cover_kernels, unicode
from llamapy.tokenizers.cover_kernels import Matcher, Normalizer
from llamapy.tokenizers.long_texts import Arrays, StringTable, n_slots
from llamapy.tokenizers.vocab import Vocab

SEEN = 1 << 16  # words remembered


def _listed(ids: NDArray[np.int32], n: int) -> list[int]:
    return cast(list[int], ids[:n].tolist())


def _bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text + b"\0", np.uint8)


class MatchTable(StringTable):
    """Texts that are matched from a place on."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        super().__init__(texts)
        self.matcher = Matcher(self.strings, self.new(1 << 22, "u1"))
        cover_kernels.hint(self.strings, len(texts), self.matcher.hints)


class WpmTexts:
    """WordPiece: words are normalized by a table and covered greedily."""

    def __init__(self, vocab: Vocab, forms: NDArray[np.uint32]) -> None:
        self._table = MatchTable(vocab.tokens)
        self._forms = self._table.at(forms)
        self._unknown = vocab.special["unk"]

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        codes = unicode.code_points(text + "\0")
        n = len(codes) - 1
        data, bounds = np.empty(7 * n + 8, np.uint8), np.empty(n + 2, np.int64)
        words = cover_kernels.normal_words(
            codes.ctypes.data, n, self._forms, data.ctypes.data, bounds.ctypes.data
        )
        out, ends = np.empty(7 * n + 8, np.int32), np.empty(words + 1, np.int64)
        slots = min(n_slots(words), SEEN)
        seen = np.full(slots, -1, np.int32)
        n_ids = cover_kernels.match_words(
            data.ctypes.data,
            bounds.ctypes.data,
            words,
            self._table.matcher,
            self._unknown,
            seen.ctypes.data,
            slots - 1,
            out.ctypes.data,
            ends.ctypes.data,
        )
        return _listed(out, n_ids)


class GreedyTexts:
    """Texts covered by the longest token each time; -1 stands for a byte without a token."""

    def __init__(self, texts: Sequence[bytes], ids: Sequence[int]) -> None:
        self._table = MatchTable(texts)
        self._ids = self._table.at(np.array(ids, np.int32))

    def encode(self, text: bytes) -> list[int]:
        """Ids of a text."""
        data, out = _bytes(text), np.empty(len(text), np.int32)
        n_ids = cover_kernels.match_text(
            data.ctypes.data, len(text), self._table.matcher, self._ids, out.ctypes.data
        )
        return _listed(out, n_ids)


class UgmTexts:
    """Unigram: normalized, then covered with the greatest sum of scores.

    pieces: text -> (id, score). kept: prefixes that are not normalized. charsmap: its trie and its
    replacements. unknown: id and score of a character without a token.
    """

    def __init__(
        self,
        pieces: Mapping[bytes, tuple[int, float]],
        kept: Iterable[bytes],
        charsmap: tuple[NDArray[np.uint32], bytes],
        unknown: tuple[int, float],
        *,
        prefix: bool,
        merge: bool,
    ) -> None:
        self._table, self._kept = MatchTable(list(pieces)), StringTable(list(kept))
        keep: Arrays = self._table
        ids, scores = zip(*pieces.values()) if pieces else ((), ())
        self._ids = keep.at(np.array(ids, np.int32))
        self._scores = keep.at(np.array(scores, np.float64))
        nodes, texts = charsmap
        self._rules = Normalizer(
            keep.at(np.ascontiguousarray(nodes)),
            len(nodes),
            keep.at(_bytes(texts)),
            len(texts),
            int(prefix),
            int(merge),
        )
        self._unknown = unknown

    def encode(self, text: bytes) -> list[int] | None:
        """Ids of a text, None if the charsmap is broken."""
        data = _bytes(text)
        given = data.ctypes.data, len(text), self._kept.strings, self._rules
        n = cover_kernels.normalize(*given, 0)
        if n < 0:
            return None
        normal = np.empty(n + 1, np.uint8)
        cover_kernels.normalize(*given, normal.ctypes.data)
        keep = Arrays()
        out = np.empty(n + 1, np.int32)
        n_ids = cover_kernels.best_cover(
            normal.ctypes.data,
            n,
            self._table.matcher,
            self._ids,
            self._scores,
            *self._unknown,
            *(keep.new(n + 1, dtype) for dtype in ("f8", "i8", "i4")),
            out.ctypes.data,
        )
        return _listed(out, n_ids)


class Plamo2Texts:
    """PLaMo-2: covered with the least cost, found from the end. pieces: text -> (score, id)."""

    def __init__(
        self, pieces: Mapping[str, tuple[int, int]], byte_tokens: Sequence[int], unknown: int
    ) -> None:
        self._table = MatchTable([unicode.encode(text) for text in pieces])
        scores, ids = zip(*pieces.values()) if pieces else ((), ())
        self._ids = self._table.at(np.array(ids, np.int32))
        self._scores = self._table.at(np.array(scores, np.int32))
        self._bytes = self._table.at(np.array(byte_tokens, np.int32))
        self._unknown = unknown

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        raw = unicode.encode(text)
        data, out, keep = _bytes(raw), np.empty(len(raw) + 1, np.int32), Arrays()
        n_ids = cover_kernels.cheapest_cover(
            data.ctypes.data,
            len(raw),
            self._table.matcher,
            self._ids,
            self._scores,
            self._unknown,
            self._bytes,
            *(keep.new(len(raw) + 1, dtype) for dtype in ("i8", "i4", "i4")),
            out.ctypes.data,
        )
        return _listed(out, n_ids)
