"""The compiled way for long texts: makes the tables of `join_kernels.py` and runs its loops.

It gives the ids of the plain way, but needs the compiler: encoders turn to it when the plain way
would take longer than loading that (`worthwhile`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.tokenizers import join_kernels, kernels, table_kernels
from llamapy.tokenizers.join_kernels import Pairs, Symbols, Work
from llamapy.tokenizers.kernels import Strings
from llamapy.tokenizers.pieces import byte_chars
from llamapy.tokenizers.vocab import Vocab

# bytes of text from which on the compiled way is faster: compiler to load, tables to make, ready
COLD, WARM, READY = 300_000, 60_000, 3_000

Bytes = NDArray[np.uint8]
Bounds = NDArray[np.int64]


def worthwhile(n_bytes: int, tables: object | None) -> bool:
    """True if the compiled way, whose tables are `tables` once made, is the sooner one."""
    least = READY if tables is not None else WARM if "numba" in sys.modules else COLD
    return n_bytes >= least


def flat(texts: Sequence[bytes]) -> tuple[Bytes, Bounds]:
    """The texts one after the other, and the bounds between them [len(texts) + 1]."""
    bounds = np.fromiter(accumulate(map(len, texts), initial=0), np.int64, len(texts) + 1)
    return np.frombuffer(b"".join(texts) + b"\0", np.uint8)[:-1], bounds


class Arrays:
    """Keeps arrays alive whose addresses compiled code holds."""

    def __init__(self) -> None:
        self._kept: list[NDArray[Any]] = []

    def at(self, array: NDArray[Any]) -> int:
        """The address of `array`, which lives as long as this."""
        assert array.flags.c_contiguous
        self._kept.append(array)
        return array.ctypes.data

    def new(self, shape: int | tuple[int, ...], dtype: str, fill: int = 0) -> int:
        """The address of a new array."""
        return self.at(np.full(shape, fill, dtype))


class StringTable(Arrays):
    """Texts found by hash, numbered as they come.

    more: texts that lie behind theirs and may be entered later, `n_more` at most.
    """

    def __init__(self, texts: Sequence[bytes], more: bytes = b"", n_more: int = 0) -> None:
        super().__init__()
        data, bounds = flat([*texts, more])
        n, capacity = len(texts), len(texts) + n_more
        self.starts = np.zeros(capacity + 1, np.int64)
        self.lengths = np.zeros(capacity + 1, np.int32)
        self.longest = np.zeros(256, np.int32)
        self.starts[:n] = bounds[:n]
        self.lengths[:n] = np.diff(bounds)[:n]
        self.more_at = int(bounds[n])
        slots = n_slots(capacity)
        self.strings = Strings(
            self.at(data),
            self.at(self.starts),
            self.at(self.lengths),
            self.new(slots, "i4", -1),
            slots - 1,
            self.at(self.longest),
        )
        kernels.index(self.strings, 0, n)


def n_slots(n: int) -> int:
    """Slots of a hash table of `n` keys: a power of two, at most half of them used."""
    return 1 << max(4, (2 * n).bit_length())


class Words:
    """Encodes words by joining neighbours. `whole` as in join_kernels.encode_words.

    cut: words are cut first where nothing can join, which shortens texts that are no words at all.
    """

    def __init__(
        self,
        mode: int,
        table: StringTable,
        pairs: Pairs,
        symbols: Symbols,
        *,
        whole: int = 0,
        cut: bool = False,
        n_strings: int = 0,
    ) -> None:
        self._table, self._pairs, self._symbols = table, pairs, symbols
        self._mode, self._whole = mode, whole
        self._marks: int | None = None
        if cut:
            self._marks = table.new(1 << 19, "u1")
            table_kernels.mark_neighbours(table.strings, n_strings, self._marks)

    def encode(self, data: Bytes, bounds: Bounds) -> tuple[NDArray[np.int32], Bounds]:
        """Ids of the words data[bounds[i]:bounds[i + 1]], and the bounds between them."""
        asked, keep = bounds, Arrays()
        if self._marks is not None:
            cuts = np.empty(len(data) + len(bounds), np.int64)
            n = table_kernels.cut_apart(
                keep.at(data), keep.at(bounds), len(bounds) - 1, self._marks, cuts.ctypes.data
            )
            bounds = cuts[: n + 1]
        out = np.empty(2 * len(data) + 1, np.int32)
        ends = np.empty(len(bounds), np.int64)
        n_ids = join_kernels.encode_words(
            self._mode,
            self._whole,
            keep.at(data),
            keep.at(bounds),
            len(bounds) - 1,
            self._table.strings,
            self._pairs,
            self._symbols,
            self._work(keep, bounds),
            out.ctypes.data,
            ends.ctypes.data,
        )
        if bounds is not asked:
            ends = ends[np.searchsorted(bounds, asked)]
        return out[:n_ids], ends

    def _work(self, keep: Arrays, bounds: Bounds) -> Work:
        n = int(np.diff(bounds).max(initial=0)) + 2
        n_encoded = 2 * int(self._table.longest.max())
        seen = min(n_slots(len(bounds)), 1 << 18)
        return Work(
            sym=keep.new(n, "i4"),
            beg=keep.new(n, "i8"),
            rank=keep.new(n, "i4"),
            new=keep.new(n, "i4"),
            after=keep.new(n, "i4"),
            before=keep.new(n, "i4"),
            heap=keep.new(3 * n, "i8"),
            encoded=keep.new(n_encoded, "u1"),
            n_encoded=n_encoded,
            seen=keep.new(seen, "i4", -1),
            seen_mask=seen - 1,
        )

    def encode_texts(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Ids of each text."""
        return cut(*self.encode(*flat(texts)))


def cut(ids: NDArray[np.int32], bounds: Bounds) -> list[list[int]]:
    """Ids that lie one after the other as one list each."""
    ends, every = bounds.tolist(), ids.tolist()
    if len(ends) == 2:
        return [every]
    return [every[a:b] for a, b in zip(ends, ends[1:])]


def spm_words(vocab: Vocab, byte_token: Callable[[int], int | None]) -> Words:
    """Joins neighbours that form a token, best first; a byte without a token gives `n_vocab`."""
    table = StringTable(vocab.tokens)
    ranks = np.unique(-vocab.scores, return_inverse=True)[1].astype(np.int32)
    rest = np.full((256, 2), -1, np.int32)
    rest[:, 0] = [vocab.n_vocab if (t := byte_token(b)) is None else t for b in range(256)]
    symbols = _plain_symbols(vocab, table, rest, ranks)
    return Words(
        join_kernels.BY_TEXT, table, _pairs(table, 0), symbols, cut=True, n_strings=vocab.n_vocab
    )


def _plain_symbols(
    vocab: Vocab, table: StringTable, rest: NDArray[np.int32], ranks: NDArray[np.int32]
) -> Symbols:
    first = np.array([vocab.ids.get(b"%c" % byte, -1) for byte in range(256)], np.int32)
    first[0xC0:] = -2
    return Symbols(table.at(first), 0, 0, table.at(rest), table.at(ranks), 0, vocab.n_vocab)


def _pairs(table: StringTable, n: int) -> Pairs:
    slots = n_slots(n)
    return Pairs(table.new(slots, "i8"), table.new(slots, "i4"), table.new(slots, "i4"), slots - 1)


def bpe_words(vocab: Vocab, merges: list[bytes]) -> Words:
    """Joins neighbours by merges: "left right" in order of rank."""
    assert vocab.rules is not None
    byte_symbols = [char.encode() for char in byte_chars()] if vocab.rules.byte_encode else []
    data, starts, lefts, lengths = _without_spaces(merges)
    singles = byte_symbols or [b"%c" % byte for byte in range(0x80)]
    joined = b"".join(singles)
    table = StringTable(vocab.tokens, joined + data, len(singles) + 3 * len(merges))
    n = vocab.n_vocab
    sizes = [len(symbol) for symbol in singles]
    table.lengths[n : n + len(singles)] = sizes
    table.starts[n : n + len(singles)] = table.more_at + np.cumsum([0, *sizes[:-1]])
    first = np.full(256, -1, np.int32)
    n = table_kernels.index_bytes(table.strings, n, table.at(first), len(singles))
    pairs = _pairs(table, len(merges))
    starts = starts + table.more_at + len(joined)
    n = table_kernels.index_pairs(
        table.strings, n, len(merges), table.at(starts), table.at(lefts), table.at(lengths), pairs
    )
    whole = 1 if vocab.rules.ignore_merges else 2 if vocab.rules.whole_newlines else 0
    symbols = _bpe_symbols(vocab, table, first, byte_symbols)
    return Words(
        join_kernels.BY_PAIR, table, pairs, symbols, whole=whole, cut=not byte_symbols, n_strings=n
    )


def _bpe_symbols(
    vocab: Vocab, table: StringTable, first: NDArray[np.int32], byte_symbols: Sequence[bytes]
) -> Symbols:
    if byte_symbols:
        texts = [[b"%c" % part for part in symbol] for symbol in byte_symbols]
    else:
        first[0xC0:] = -2
        texts = [[b"<0x%02X>" % byte] for byte in range(256)]
    rest = np.full((256, 2), -1, np.int32)
    encoded = np.zeros((256, 2), np.uint8)
    n_encoded = np.zeros(256, np.int32)
    for byte, parts in enumerate(texts):
        rest[byte, : len(parts)] = [vocab.ids.get(part, -1) for part in parts]
    for byte, symbol in enumerate(byte_symbols):
        encoded[byte, : len(symbol)] = list(symbol)
        n_encoded[byte] = len(symbol)
    return Symbols(
        first=table.at(first),
        encoded=table.at(encoded),
        n_encoded=table.at(n_encoded),
        rest=table.at(rest),
        ranks=0,
        byte_encoded=int(bool(byte_symbols)),
        n_tokens=vocab.n_vocab,
    )


def _without_spaces(
    merges: list[bytes],
) -> tuple[bytes, Bounds, NDArray[np.int32], NDArray[np.int32]]:
    """Merges without the space between their parts: data, starts, lengths of left parts and of all.

    The space is the first one from the second byte on; without one the left length is 0.
    """
    data, bounds = flat(merges)
    spaces = np.append(np.flatnonzero(data == 0x20), len(data) + 1)
    at = spaces[np.searchsorted(spaces, bounds[:-1] + 1)]
    found = at < bounds[1:]
    kept = np.delete(data, at[found])
    removed = np.concatenate([[0], np.cumsum(found)])
    starts = bounds[:-1] - removed[:-1]
    left = np.where(found, at - bounds[:-1], 0).astype(np.int32)
    lengths = (np.diff(bounds) - found).astype(np.int32)
    return kept.tobytes(), starts, left, lengths
