"""The bookkeeping of a cache: which position of which sequences each cell holds. Knows no tensors.

A cell is empty (position -1) or holds one position that belongs to one or more sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
Ids = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

Saved = tuple[Ints, Bools, Ints, int]


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

    def save(self) -> Saved:
        """All of it, to be given to `restore`."""
        return self.pos.copy(), self.seqs.copy(), self.delta.copy(), self.head

    def restore(self, saved: Saved) -> None:
        self.pos[:], self.seqs[:], self.delta[:], self.head = saved

    @property
    def n_used(self) -> int:
        return int(np.count_nonzero(self.pos >= 0))

    @property
    def end(self) -> int:
        """One past the last cell in use."""
        used = self.pos >= 0
        return int(self.n - np.argmax(used[::-1])) if used.any() else 0

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
        if self.n_seq_max == 1:
            return int(self.pos.max())
        held = self.pos[self.seqs[:, seq]]
        return int(held.max()) if len(held) else -1

    def find(self, n: int, window: int = 0) -> Ids | None:
        """n cells to write, searched round from `head`; None if there are not so many.

        Free are empty cells and, with a window, those of a single sequence whose next token no
        longer sees them.
        """
        free = self.pos < 0
        if window:
            free |= self._out_of_sight(window)
        found = np.flatnonzero(free[: self.limit])
        if len(found) < n:
            return None
        # Start over at the front when enough room has come free there.
        head = 0 if self.head > self.n_used + 2 * n else self.head
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
        self.pos[ids], self.seqs[ids], self.delta[ids] = pos, seqs, 0
        self.head = int(ids[-1]) + 1 if int(ids[-1]) + 1 < self.n else 0

    def forget(self, ids: Ids) -> None:
        """Empty these cells, whatever they hold."""
        self.pos[ids], self.seqs[ids], self.delta[ids] = -1, False, 0

    def clear(self) -> None:
        self.pos[:], self.seqs[:], self.delta[:], self.head = -1, False, 0, 0

    def remove(self, seq: int, p0: int = -1, p1: int = -1) -> None:
        """Take positions p0 to p1 - 1 from the sequence (-1: from every one)."""
        held = self.of(seq, p0, p1)
        if seq < 0:
            self.seqs[held] = False
        else:
            self.seqs[held, seq] = False
        self._drop_orphans(held)

    def copy(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """Let the target sequence share the source's positions p0 to p1 - 1."""
        self.seqs[self.of(source, p0, p1), target] = True

    def keep(self, seq: int) -> None:
        """Remove every other sequence."""
        others = np.arange(self.n_seq_max) != seq
        self.seqs[:, others] = False
        self._drop_orphans(self.pos >= 0)

    def move(self, seq: int, p0: int, p1: int, new: Ints | None = None, delta: int = 0) -> None:
        """Give the sequence's positions p0 to p1 - 1 new values: `new` for all cells, or moved by
        `delta`.

        Positions that would become negative are removed.
        """
        held = self.of(seq, p0, p1)
        before = self.pos[held]
        after = before + delta if new is None else new[held]
        self.delta[held] += after - before
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
