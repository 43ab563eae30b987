"""The bookkeeping of cells, by hand-made cases."""

from __future__ import annotations

import numpy as np

from llamapy.runtime.memory.cells import Cells


def put(cells: Cells, ids: list[int], pos: list[int], seq: int = 0) -> None:
    seqs = np.zeros((len(ids), cells.n_seq_max), np.bool_)
    seqs[:, seq] = True
    cells.put(np.array(ids), np.array(pos, np.int32), seqs)


def test_search_goes_round_from_the_head() -> None:
    cells = Cells(8, 1)
    put(cells, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    assert cells.head == 6
    cells.remove(0, 0, 2)
    cells.head = 6  # as if it had stayed behind
    assert cells.find(4).tolist() == [6, 7, 0, 1]  # type: ignore[union-attr]
    assert cells.find(5) is None


def test_search_starts_over_when_the_front_is_free() -> None:
    cells = Cells(16, 1)
    put(cells, list(range(12)), list(range(12)))
    cells.remove(0, 0, 11)
    cells.head = 12
    assert cells.find(2).tolist() == [0, 1]  # type: ignore[union-attr]  # 12 > 1 used + 2 * 2


def test_limit() -> None:
    cells = Cells(256, 1, limit=5)
    assert cells.find(6) is None and len(cells.find(5)) == 5  # type: ignore[arg-type]


def test_window_frees_what_the_next_token_does_not_see() -> None:
    cells = Cells(6, 1)
    put(cells, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    assert cells.find(1) is None
    # the next is position 6; with a window of 4 it sees 3, 4, 5 and itself
    assert cells.find(3, window=4).tolist() == [0, 1, 2]  # type: ignore[union-attr]
    assert cells.find(4, window=4) is None


def test_shared_cells_stay_for_the_window() -> None:
    cells = Cells(4, 2)
    put(cells, [0, 1, 2, 3], [0, 1, 2, 3])
    cells.copy(0, 1, 0, 1)
    assert cells.find(2, window=2).tolist() == [1, 2]  # type: ignore[union-attr]


def test_sequences() -> None:
    cells = Cells(6, 3)
    put(cells, [0, 1, 2], [0, 1, 2])
    put(cells, [3, 4], [0, 1], seq=2)
    cells.copy(0, 1, 1, 3)
    assert (cells.pos_min(1), cells.pos_max(1)) == (1, 2)
    cells.remove(0)
    assert cells.pos.tolist() == [-1, 1, 2, 0, 1, -1]
    cells.keep(2)
    assert cells.pos.tolist() == [-1, -1, -1, 0, 1, -1] and cells.end == 5


def test_moving_below_zero_removes() -> None:
    cells = Cells(4, 1)
    put(cells, [0, 1, 2, 3], [0, 1, 2, 3])
    cells.move(0, 0, -1, delta=-2)
    assert cells.pos.tolist() == [-1, -1, 0, 1] and cells.delta.tolist() == [0, 0, -2, -2]
    cells.move(0, 0, -1, delta=1)
    assert cells.delta.tolist() == [0, 0, -1, -1]


def test_restore() -> None:
    cells = Cells(4, 1)
    put(cells, [0, 1], [0, 1])
    saved = cells.save()
    put(cells, [2], [2])
    cells.remove(0, 0, 1)
    cells.restore(saved)
    assert cells.pos.tolist() == [0, 1, -1, -1] and cells.head == 2
