"""The IQ types beyond what every type is asked: grids, near points, sorting, what ggml refuses.

The truth is the gguf package, ggml's own library, or numpy's meaning of the words.
"""

import os
import subprocess
import sys

import make_grids
import numpy as np
import pytest
from ggml_base import SLOW_TABLES
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from llamapy.native import compiled
from llamapy.quants import _grid, _iq4, _neighbours, _ternary, codec

GRIDS = ("iq1", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
SEARCHED = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
ALL = (*SEARCHED, "iq4_nl", "iq4_xs")
WANT = {"iq1": 3, "iq2_xxs": 2, "iq2_xs": 2, "iq2_s": 1, "iq3_xxs": 2, "iq3_s": 3}  # ggml's nwant


def address(array):
    return array.ctypes.data


def raw_encode(name, rows, importance):
    """What `encode` returns, and the blocks."""
    kind = codec.get(name)
    out = np.full((len(rows), kind.row_bytes(rows.shape[1])), 0xAA, np.uint8)
    status = kind.encode(
        address(rows), address(out), *rows.shape, address(importance), codec.tables_address(kind)
    )
    return status, out


@compiled
def make_lists(search):
    _neighbours.make_once(search)


def levels(grid):
    """The points as whole numbers from 0."""
    points = _grid.points(grid)
    return np.searchsorted(np.unique(points), points)


def codes_of(points):
    bits = 2 if points.shape[1] == 8 else 3
    return (points << bits * np.arange(points.shape[1])).sum(axis=1)


@pytest.mark.parametrize("grid", GRIDS)
def test_grids_are_those_of_gguf(grid):
    assert np.array_equal(_grid.points(grid), make_grids.points(make_grids.SOURCES[grid]))


@pytest.mark.parametrize("grid", GRIDS)
def test_near_points_are_all_within_the_wanted_distances(grid):
    """Against the definition: for codes taken at random, sort all points by distance and index."""
    tables = _neighbours.search_tables(grid, 1, 1)
    addresses = np.array([address(table) for table in tables], np.int64)
    make_lists(address(addresses))
    points, places, lists = levels(grid), tables[3], tables[4]
    n_levels = 3 if points.shape[1] == 8 else 8
    rng = np.random.default_rng(0)
    for point in rng.integers(0, n_levels, (100, points.shape[1])):
        squares = ((points - point) ** 2).sum(axis=1)
        place = places[codes_of(point[None])[0]]
        if squares.min() == 0:
            assert place == squares.argmin()
            continue
        order = np.argsort(squares, kind="stable")
        far = np.unique(squares)[: WANT[grid]][-1]
        want = codes_of(points[order[squares[order] <= far]])
        n = int(lists[-1 - place])
        got = lists[-place : -place + n]
        assert n % 8 == 0 and n - 8 < len(want) <= n
        assert np.array_equal(got[: len(want)], want) and (got[len(want) :] == want[-1]).all()


@pytest.mark.parametrize("n", [16, 32])
def test_ascending_is_a_stable_sort(n):
    rng = np.random.default_rng(n)
    for n_values in (1, 3, 8, 1000):
        values = rng.integers(-n_values, n_values, n).astype(np.float32) / 4
        order = np.full(n, -1, np.int32)
        _ternary.ascending(address(values), n, address(order))
        assert np.array_equal(order, np.argsort(values, kind="stable"))


def test_iq4_codes_are_of_the_nearest_number_and_the_greater_of_two():
    """All middles, the floats beside them, and beyond both ends."""
    numbers = _iq4.VALUES.astype(np.float64)
    middles = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middles, np.float32(side)) for side in (-1000, 1000)]
    values = np.concatenate([middles, *beside, numbers, numbers * 3]).astype(np.float32)
    values = np.resize(values, (-(-len(values) // 32), 32))
    distances = np.abs(values[..., None].astype(np.float64) - numbers)
    want = 15 - distances[..., ::-1].argmin(axis=-1)
    for row, codes in zip(values, want):
        got = np.zeros(16, np.uint8)
        _iq4.pack(address(row), np.float32(1), address(_iq4.LADDER), address(got))
        assert np.array_equal(np.concatenate([got & 15, got >> 4]), codes)


@pytest.mark.parametrize("name", ALL)
def test_bytes_do_not_depend_on_how_rows_are_split(name):
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((5, 768)).astype(np.float32)
    importance = rng.random(768).astype(np.float32)
    status, whole = raw_encode(name, rows, importance)
    assert status == 0
    for first, last in ((0, 2), (2, 3), (3, 5)):
        assert np.array_equal(raw_encode(name, rows[first:last], importance)[1], whole[first:last])


def refused(case):
    """Rows of which the second is too large, or importances that are no numbers."""
    rows, importance = np.ones((3, 256), np.float32), np.ones(256, np.float32)
    rows[1] = 3.4e38 if case == "large" else -2
    importance *= np.float32("nan" if case == "nan" else 1)
    return rows, importance


def aborts(name, folder, *arrays):
    """Whether ggml ends the process on these rows and importances."""
    np.savez(folder / "arrays.npz", *arrays)
    code = "import sys, ggml_base, numpy as np; kind, path = sys.argv[1:]; arrays = np.load(path)\n"
    code += "ggml_base.connect().quantize(kind, arrays['arr_0'], arrays['arr_1'])"
    paths = os.pathsep.join([path for path in sys.path if path])
    done = subprocess.run(
        [sys.executable, "-c", code, name, str(folder / "arrays.npz")],
        env={**os.environ, "PYTHONPATH": paths, "GGML_NO_BACKTRACE": "1"},
        capture_output=True,
    )
    assert done.returncode in (0, -6), done.stderr.decode(errors="replace")
    return done.returncode != 0


quick_or_slow = pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW_TABLES)) for n in SEARCHED],
)


@pytest.mark.parametrize(("case", "row"), [("large", 2), ("nan", 1)])
@quick_or_slow
def test_the_row_on_which_ggml_aborts_is_returned(name, case, row, ggml, tmp_path):
    rows, importance = refused(case)
    status, _ = raw_encode(name, rows, importance)
    assert status == (row if aborts(name, tmp_path, rows, importance) else 0)


def test_iq3_s_repeats_ggmls_fault_after_a_group_of_zeros(ggml):
    """The groups after it in the block decode wrongly, there as here."""
    rows = np.random.default_rng(2).standard_normal((1, 512)).astype(np.float32)
    rows[:, 64:96] = 0
    importance = np.ones(512, np.float32)
    _, got = raw_encode("iq3_s", rows, importance)
    assert np.array_equal(got, ggml.quantize("iq3_s", rows, importance))
    off = np.abs(dequantize(got, GGMLQuantizationType.IQ3_S) - rows).reshape(16, 32).mean(axis=1)
    assert off[:2].max() < 0.3 < off[3:7].min() and off[8:].max() < 0.3


def any_rows(rng):
    rows = rng.standard_normal((4, 1024)) * 10.0 ** rng.uniform(-9, 4)
    style = rng.integers(4)
    if style == 1:
        rows *= rng.random(rows.shape) < rng.random()
    elif style == 2:
        rows *= np.repeat(np.exp2(rng.uniform(-30, 3, (4, 64))), 16, axis=1)
    elif style == 3:
        rows = np.round(rows / np.abs(rows).max() * rng.integers(1, 9))
    return rows.astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_bytes_of_many_random_rows_are_those_of_ggml(name, ggml):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        rows, importance = any_rows(rng), rng.standard_normal(1024).astype(np.float32) ** 2
        importance *= rng.random(1024) < rng.choice([1, 0.7])
        _, got = raw_encode(name, rows, importance)
        assert np.array_equal(got, ggml.quantize(name, rows, importance)), seed
