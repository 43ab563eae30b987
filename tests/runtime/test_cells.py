"""The bookkeeping of cells, by hand-made cases."""

from __future__ import annotations

import numpy as np
import pytest

from llamapy.nn.cache import Layer
from llamapy.runtime.batch import Tokens
from llamapy.runtime.memory.cells import Cells
from llamapy.runtime.memory.masks import mask


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


@pytest.mark.parametrize("n_seq_max", [1, 3])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_known_is_what_a_count_gives(n_seq_max: int, seed: int) -> None:
    """Numbers that every decode asks for are kept along, through any order of changes."""
    rng = np.random.default_rng(seed)
    cells, n = Cells(24, n_seq_max), n_seq_max
    saved = cells.save()

    def write() -> None:
        ids = cells.find(int(rng.integers(1, 4)), window=int(rng.integers(0, 2)) * 6)
        if ids is not None:
            pos = np.array(rng.integers(0, 40, len(ids)), np.int32)
            seqs = rng.random((len(ids), n)) < 0.4
            seqs[np.arange(len(ids)), rng.integers(0, n, len(ids))] = True
            cells.put(ids, pos, seqs)

    def keep() -> None:
        nonlocal saved
        saved = cells.save()

    def seq() -> int:
        return int(rng.integers(0, n))

    changes = [
        *[write] * 8,
        lambda: cells.remove(seq(), *sorted(rng.integers(0, 40, 2).tolist())),
        lambda: cells.copy(seq(), seq(), 0, int(rng.integers(1, 40))),
        lambda: cells.move(seq(), 3, 30, delta=int(rng.integers(-5, 6))),
        lambda: cells.forget(np.array([int(rng.integers(0, 24))])),
        lambda: cells.keep(seq()),
        keep,
        lambda: cells.restore(saved),
        cells.clear,
    ]
    for _ in range(300):
        changes[int(rng.integers(0, len(changes)))]()
        used = cells.pos >= 0
        assert cells.n_used == used.sum()
        assert cells.end == max([i + 1 for i in range(24) if used[i]], default=0)
        for s in range(n):
            held = cells.pos[cells.seqs[:, s]].tolist()
            assert cells.pos_max(s) == max(held, default=-1)
        assert cells.moved or not cells.delta.any()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("max_bias", [0.0, 8.0])
@pytest.mark.parametrize("n_tokens", [1, 4])
def test_mask(causal: bool, window: int, max_bias: float, n_tokens: int) -> None:
    """What each token sees, written out."""
    rng = np.random.default_rng(n_tokens)
    n_kv, n_seq = 40, 3
    pos = np.where(rng.random(n_kv) < 0.2, -1, rng.integers(0, 20, n_kv)).astype(np.int32)
    seqs = (rng.random((n_kv, n_seq)) < 0.5) & (pos >= 0)[:, None]
    own = rng.integers(0, 20, n_tokens).astype(np.int32)
    seq = rng.integers(0, n_seq, n_tokens)
    belongs = np.eye(n_seq, dtype=np.bool_)[seq]
    part = Tokens(None, None, own, belongs, seq, np.ones(n_tokens, np.bool_))
    layer = Layer(0, 1, 1, 1, causal=causal, window=window, max_bias=max_bias)
    found = mask(layer, part, pos, seqs)
    assert found.shape == (n_tokens, n_kv) and found.dtype == np.float16
    for t in range(n_tokens):
        for j in range(n_kv):
            seen = seqs[j, seq[t]]
            seen = seen and not (causal and pos[j] > own[t])
            seen = seen and not (window and own[t] - pos[j] >= window)
            distance = abs(int(own[t]) - int(pos[j])) if max_bias else 0
            assert found[t, j] == (-distance if seen else -np.inf)
