"""The bookkeeping of a cache: which position of which sequences each cell holds. Knows no tensors.

A cell is empty (position -1) or holds one position that belongs to one or more sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
Ids = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

Saved = tuple[Ints, Bools, Ints, int, bool]


@dataclass
class Summary:
    """What every decode asks: how many cells are in use, one past the last of them, and the last
    position of each sequence that was asked for."""

    n_used: int
    end: int
    pos_max: dict[int, int]


class Cells:
    """n cells for sequences 0 to n_seq_max - 1, of which only the first `limit` are ever used.

    pos    i32 [n], -1 if empty
    seqs   bool [n, n_seq_max]
    delta  i32 [n]: by how much a cell's position has been moved since its key was turned
    head   where the search for free cells begins
    """

    def __init__(self, n: int, n_seq_max: int, limit: int = 0) -> None:
        self.n, self.n_seq_max, self.limit = n, n_seq_max, limit or n
        self.pos: Ints = np.full(n, -1, np.int32)
        self.seqs: Bools = np.zeros((n, n_seq_max), np.bool_)
        self.delta: Ints = np.zeros(n, np.int32)
        self.head = 0
        self.moved = False  # whether a delta may be other than 0
        self._known: Summary | None = None  # None: something has changed since it was counted

    def save(self) -> Saved:
        """All of it, to be given to `restore`."""
        return self.pos.copy(), self.seqs.copy(), self.delta.copy(), self.head, self.moved

    def restore(self, saved: Saved) -> None:
        self.pos[:], self.seqs[:], self.delta[:], self.head, self.moved = saved
        self._known = None

    def _summary(self) -> Summary:
        if self._known is None:
            used = np.flatnonzero(self.pos >= 0)
            self._known = Summary(len(used), int(used[-1]) + 1 if len(used) else 0, {})
        return self._known

    @property
    def n_used(self) -> int:
        return self._summary().n_used

    @property
    def end(self) -> int:
        """One past the last cell in use."""
        return self._summary().end

    def of(self, seq: int, p0: int = -1, p1: int = -1) -> Bools:
        """Which cells hold positions p0 to p1 - 1 (negative: from the first, to the last) of `seq`;
        -1 is any."""
        found = self.pos >= 0 if seq < 0 else self.seqs[:, seq].copy()
        if p0 > 0:
            found &= self.pos >= p0
        if p1 >= 0:
            found &= self.pos < p1
        return found

    def pos_min(self, seq: int) -> int:
        """The least position of the sequence; -1 if it has none."""
        held = self.pos[self.seqs[:, seq]]
        return int(held.min()) if len(held) else -1

    def pos_max(self, seq: int) -> int:
        """The greatest position of the sequence; -1 if it has none."""
        known = self._summary().pos_max
        if seq not in known:
            held = self.pos[self.seqs[:, seq]]
            known[seq] = int(held.max()) if len(held) else -1
        return known[seq]

    def find(self, n: int, window: int = 0) -> Ids | None:
        """n cells to write, searched round from `head`; None if there are not so many.

        Free are empty cells and, with a window, those of a single sequence whose next token no
        longer sees them.
        """
        # Start over at the front when enough room has come free there.
        head = 0 if self.head > self.n_used + 2 * n else self.head
        if n == 1 and head < self.limit and self.pos[head] < 0:  # between two tokens of a text
            return np.array([head])
        free = self.pos < 0
        if window:
            free |= self._out_of_sight(window)
        found = np.flatnonzero(free[: self.limit])
        if len(found) < n:
            return None
        first = int(np.searchsorted(found, head))
        return np.concatenate([found[first : first + n], found[: max(0, n - (len(found) - first))]])

    def _out_of_sight(self, window: int) -> Bools:
        if self.n_seq_max == 1:
            return self.pos <= self.pos_max(0) + 1 - window
        hidden = np.zeros(self.n, np.bool_)
        alone = self.seqs.sum(axis=1) == 1
        for seq in np.flatnonzero(self.seqs.any(axis=0)):
            following = self.pos_max(int(seq)) + 1
            hidden |= alone & self.seqs[:, seq] & (following - self.pos >= window)
        return hidden

    def put(self, ids: Ids, pos: Ints, seqs: Bools) -> None:
        """Write cells: `pos` [m] and `seqs` [m, n_seq_max]."""
        if len(ids) == 1:
            self._put_one(int(ids[0]), int(pos[0]), seqs[0])
        else:
            self._known = self._with(ids, pos, seqs)
            self.pos[ids], self.seqs[ids], self.delta[ids] = pos, seqs, 0
        end = int(ids[-1]) + 1
        self.head = end if end < self.n else 0

    def _put_one(self, at: int, pos: int, seqs: Bools) -> None:
        """As `put`, by numbers: between two tokens an operation on an array is found nowhere in the
        caches, and takes ten times as long as in a loop."""
        known = self._known
        if known is not None and self.pos[at] < 0:
            known.n_used += 1
            known.end = max(known.end, at + 1)
            for seq, last in known.pos_max.items():
                if pos > last and seqs[seq]:
                    known.pos_max[seq] = pos
        else:
            self._known = None
        self.pos[at], self.seqs[at], self.delta[at] = pos, seqs, 0

    def _with(self, ids: Ids, pos: Ints, seqs: Bools) -> Summary | None:
        """The summary after these cells are written; None if something is overwritten."""
        known = self._known
        if known is None or (self.pos[ids] >= 0).any():
            return None
        last = {
            seq: max(last, int(pos[seqs[:, seq]].max(initial=-1)))
            for seq, last in known.pos_max.items()
        }
        return Summary(known.n_used + len(ids), max(known.end, int(ids.max()) + 1), last)

    def forget(self, ids: Ids) -> None:
        """Empty these cells, whatever they hold."""
        self._known = None
        self.pos[ids], self.seqs[ids], self.delta[ids] = -1, False, 0

    def clear(self) -> None:
        self._known = None
        self.pos[:], self.seqs[:], self.delta[:], self.head = -1, False, 0, 0

    def remove(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Take positions p0 to p1 - 1 from the sequence (-1: from every one)."""
        self._known = None
        held = self.of(seq, p0, p1)
        if seq < 0:
            self.seqs[held] = False
        else:
            self.seqs[held, seq] = False
        self._drop_orphans(held)

    def copy(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """Let the target sequence share the source's positions p0 to p1 - 1."""
        self._known = None
        self.seqs[self.of(source, p0, p1), target] = True

    def keep(self, seq: int) -> None:
        """Remove every other sequence."""
        self._known = None
        others = np.arange(self.n_seq_max) != seq
        self.seqs[:, others] = False
        self._drop_orphans(self.pos >= 0)

    def move(self, seq: int, p0: int, p1: int, new: Ints | None = None, delta: int = 0) -> None:
        """Give the sequence's positions p0 to p1 - 1 new values: `new` for all cells, or moved by
        `delta`.

        Positions that would become negative are removed.
        """
        self._known = None
        held = self.of(seq, p0, p1)
        before = self.pos[held]
        after = before + delta if new is None else new[held]
        self.delta[held] += after - before
        self.moved = True
        self.pos[held] = np.maximum(after, -1)
        gone = held & (self.pos < 0)
        self.seqs[gone] = False
        self.delta[gone] = 0
        if gone.any():
            self.head = int(np.flatnonzero(gone)[0])

    def _drop_orphans(self, among: Bools) -> None:
        gone = among & ~self.seqs.any(axis=1)
        self.pos[gone], self.delta[gone] = -1, 0
        if gone.any():
            self.head = min(self.head, int(np.flatnonzero(gone)[0]))
