"""The tokens that are still in the race: ids and scores in numpy arrays, and how to order them
fast.

Arrays are never written in place: a sampler that changes scores puts a new array there, so the
logits of the caller stay as they are. Ties are always ordered by position, so the lowest token id
wins.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

F32: TypeAlias = NDArray[np.float32]
Index: TypeAlias = NDArray[np.intp]

LOOKS = (256, 8192)  # how many of a long list `leading` tries before all
BLOCK_ROWS = 64  # elements that share one maximum in `largest`
SMALL = 4096  # up to here exponentials and logarithms are rounded correctly, by way of double
FAINT = -25.0


def descending(values: F32) -> Index:
    """Positions of `values` from the largest to the smallest, equal ones in their order."""
    if len(values) <= 256:
        return np.argsort(-values, kind="stable")
    # Unique keys sort faster than a stable sort: the ordered bits of the float above, the position
    # below.
    bits = (values + np.float32(0)).view(np.int32)  # + 0 turns -0 into 0
    rising = np.where(bits < 0, ~bits, bits | np.int32(-(2**31))).view(np.uint32)
    keys = (~rising).astype(np.uint64) << np.uint64(32) | np.arange(len(values), dtype=np.uint64)
    keys.sort()
    return (keys & np.uint64(0xFFFFFFFF)).astype(np.intp)


def largest(values: F32, k: int) -> Index:
    """Positions of the `k` largest `values`, largest first; for a small k one pass over memory."""
    n = len(values)
    if k >= n:
        return descending(values)
    if 4 * k > n // BLOCK_ROWS:
        found = np.flatnonzero(values >= _floor(values, k))
    else:
        found = _reaching(values, k)
    if len(found) > max(4 * k, SMALL) and (banned := values[found] == -np.inf).any():
        # most are banned and equal: no need to sort those
        spare = found[banned][:k]
        found = np.concatenate([found[~banned], spare])
    return found[descending(values[found])[:k]]


def _floor(values: F32, k: int) -> np.float32:
    """The k-th largest value."""
    return np.float32(np.partition(values, len(values) - k)[len(values) - k])


def _reaching(values: F32, k: int) -> Index:
    """Rising positions of at least the k largest values, and of few others.

    The values are dealt into blocks. The k-th largest block maximum is a floor under the k-th
    largest value, and only blocks that reach it are looked into.
    """
    width = len(values) // BLOCK_ROWS
    body = BLOCK_ROWS * width
    blocks = values[:body].reshape(BLOCK_ROWS, width)
    peaks = blocks.max(axis=0)
    floor = _floor(peaks, k)
    columns = np.flatnonzero(peaks >= floor)
    rows, at = np.nonzero(blocks[:, columns] >= floor)
    rest = np.flatnonzero(values[body:] >= floor) + body
    return np.sort(np.concatenate([rows * width + columns[at], rest]))


def leading(scores: F32, probs: F32, p: np.float32, *, side: Literal["left", "right"]) -> Index:
    """The fewest positions by falling score whose `probs` sum to `p` (side "right": to more).

    Looks at a few first: a long list is rarely kept beyond them.
    """
    for look in (*LOOKS, len(scores)):
        order = largest(scores, look)
        count = int(np.searchsorted(running_sum(probs[order]), p, side=side)) + 1
        if count < look or look >= len(scores):
            break
    return order[:count]


def exp_f32(values: F32) -> F32:
    """exp in single precision, as the C library's expf rounds it.

    Of a long list only what is above exp(FAINT), which is lost beside 1; the rest is a few units of
    the last place off.
    """
    if len(values) <= SMALL:
        return np.exp(values.astype(np.float64)).astype(np.float32)
    raised = np.exp(values)
    plain = np.flatnonzero(values > FAINT)
    raised[plain] = np.exp(values[plain].astype(np.float64))
    return raised


def log_f32(values: F32) -> F32:
    """ln in single precision, as the C library's logf rounds it (for up to `SMALL` values)."""
    with np.errstate(divide="ignore"):  # ln 0 is -inf
        if len(values) > SMALL:
            return np.log(values)
        return np.log(values.astype(np.float64)).astype(np.float32)


def running_sum(values: F32) -> F32:
    """Sums of the first 1, 2, ... values, single precision and in order, as a C loop has them."""
    return np.cumsum(values, dtype=np.float32)


def falling(values: F32) -> F32:
    """The values from the largest to the smallest."""
    return -np.sort(-values)


class Candidates:
    """ids int32 [n] and logits float32 [n]; probs float32 [n] once a softmax was taken.

    `sorted` says that logits fall from left to right. `selected` is the position of the chosen
    token.
    """

    __slots__ = ("_ids", "logits", "probs", "selected", "sorted")

    def __init__(self, logits: F32, ids: NDArray[np.int32] | None = None) -> None:
        self.logits = logits
        self._ids = ids  # None: the whole vocabulary in its own order, position == id
        self.probs: F32 | None = None
        self.sorted = False
        self.selected = -1

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def whole(self) -> bool:
        """Whether this is the whole vocabulary in its own order: position == id."""
        return self._ids is None

    @property
    def ids(self) -> NDArray[np.int32]:
        """The token ids, int32 [n]."""
        return np.arange(len(self), dtype=np.int32) if self._ids is None else self._ids

    def take(self, keep: Index | slice, *, sorted: bool) -> None:
        """Keep the candidates at positions `keep`, in that order."""
        if self._ids is None and not isinstance(keep, slice):
            self._ids = keep.astype(np.int32)
        else:
            self._ids = self.ids[keep]
        self.logits = self.logits[keep]
        self.probs = None if self.probs is None else self.probs[keep]
        self.sorted = sorted

    def sort(self) -> None:
        """Order by falling logit, unless that is so already."""
        if not self.sorted:
            self.take(descending(self.logits), sorted=True)

    def peak(self) -> np.float32:
        """The largest logit."""
        return np.float32(self.logits[0] if self.sorted else self.logits.max())

    def softmax(self, *, largest_first: bool = False) -> F32:
        """probs = exp(logit - max) / sum, kept in `probs` and returned.

        The sum is taken in order, or from the largest down: in single precision that matters.
        """
        raised = exp_f32(self.logits - self.peak())
        self.probs = raised / running_sum(falling(raised) if largest_first else raised)[-1]
        return self.probs

    def find(self, tokens: NDArray[np.int32]) -> tuple[Index, Index]:
        """Where `tokens` (distinct ids) are: (positions here, which of `tokens` each one is)."""
        if self.whole:
            inside = np.flatnonzero((tokens >= 0) & (tokens < len(self)))
            return tokens[inside].astype(np.intp), inside
        at = np.flatnonzero(np.isin(self.ids, tokens))
        order = np.argsort(tokens, kind="stable")
        which = order[np.searchsorted(tokens, self.ids[at], sorter=order)]
        return at, which
