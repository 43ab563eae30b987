"""Errors of tensors against numpy's, comparisons of files, and pages that stand alone."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantize_models as models
from hypothesis import given
from hypothesis import strategies as st

from llamapy.core.errors import OutputError, UsageError
from llamapy.gguf.writer import GGUFWriter
from llamapy.tasks import compare, quantize, report
from llamapy.tasks.inspect import open_gguf
from llamapy.tasks.quantize import Options
from llamapy.tasks.tensor_error import N_BINS, TensorError, bin_edges


def arrays(seed: int, rows: int = 9) -> tuple[Any, Any]:
    rng = np.random.RandomState(seed)
    a = rng.standard_normal((rows, 32)).astype(np.float32)
    return a, (a + rng.standard_normal(a.shape) * 0.02).astype(np.float32)


def test_figures_are_those_of_numpy() -> None:
    a, b = arrays(1)
    weights = np.random.RandomState(2).uniform(0, 2, 32).astype(np.float32)
    found = TensorError()
    found.add(a, b, weights, first_row=100)
    x, y = a.astype(np.float64), b.astype(np.float64)
    e = y - x
    assert found.n == a.size
    assert found.rmse == pytest.approx(np.sqrt((e**2).mean()), rel=1e-6)
    assert found.relative == pytest.approx(np.linalg.norm(e) / np.linalg.norm(x), rel=1e-6)
    expected = np.sqrt((e**2 * weights).sum() / (x**2 * weights).sum())
    assert found.weighted_relative == pytest.approx(expected, rel=1e-6)
    cosine = (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y)
    assert found.cosine == pytest.approx(cosine, rel=1e-9)
    assert found.largest == pytest.approx(np.abs(e).max(), rel=1e-6)
    row, column = np.unravel_index(np.abs(b - a).argmax(), a.shape)
    assert found.worst == (100 + row, column)


def test_the_histogram_is_that_of_numpy() -> None:
    a, b = arrays(3)
    found = TensorError()
    found.add(a, b)
    size = np.abs(b - a) / np.sqrt(np.square(a, dtype=np.float64).mean(axis=1, keepdims=True))
    expected, _ = np.histogram(size, bins=[*bin_edges()[:-1], 1e30])
    assert int(np.abs(found.histogram - expected).sum()) <= 2  # at an edge rounding may decide
    assert len(bin_edges()) == N_BINS + 1


@given(st.lists(st.integers(0, 6), max_size=5))
def test_pieces_add_up(sizes: list[int]) -> None:
    a, b = arrays(4, sum(sizes) + 1)
    whole, pieces, at = TensorError(), TensorError(), 0
    whole.add(a, b)
    for n in [*sizes, 1]:
        part = TensorError()
        part.add(a[at : at + n], b[at : at + n], None, at)
        pieces.merge(part)
        at += n
    assert pieces.errors == pytest.approx(whole.errors)
    assert pieces.worst == whole.worst and pieces.largest == whole.largest
    np.testing.assert_array_equal(pieces.histogram, whole.histogram)


def test_equal_and_empty() -> None:
    equal = TensorError()
    equal.add_equal(10)
    assert (equal.relative, equal.rmse, equal.cosine) == (0.0, 0.0, 1.0)
    zero = TensorError()
    zero.add(np.zeros((1, 4), np.float32), np.ones((1, 4), np.float32))
    assert zero.relative == float("inf") and zero.as_json()["relative_error"] == "inf"
    assert TensorError().as_json()["rmse"] == 0.0


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> quantize.Job:
    folder = tmp_path_factory.mktemp("report")
    models.write("llama", folder / "in.gguf")
    with quantize.prepare(folder / "in.gguf", "Q3_K_M", Options(threads=2)) as made:
        quantize.fit(made, bits_per_weight=9.0)
        quantize.run(made, folder / "out.gguf", measure=True)
    return made


def test_errors_of_a_job_are_those_of_its_files(job: quantize.Job) -> None:
    source = Path(job.file.path)
    with open_gguf(source) as a, open_gguf(source.with_name("out.gguf")) as b:
        found = {one.name: one for one in compare.compare(a, b, threads=2).tensors}
    assert len(found) == len(job.plan.tensors) and any(e.errors for e in job.errors.values())
    for name, error in job.errors.items():
        other = found[name].error
        assert error.errors == pytest.approx(other.errors, rel=1e-9)
        assert error.worst == other.worst and error.n == other.n


def test_a_report_in_json(job: quantize.Job, tmp_path: Path) -> None:
    made = report.of_job(job, "out.gguf")
    report.write(made, tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail)
    assert len(found["tensors"]) == len(job.plan.tensors)
    one = next(t for t in found["tensors"] if t["name"] == "blk.7.ffn_down.weight")
    assert one["layer"] == 7 and one["shape"] == [256, 2] and one["from"] == "f32"
    assert 0 < one["relative_error"] < 1 and sum(one["histogram"]) == 512
    assert len(found["histogram_edges"]) == len(one["histogram"]) + 1
    trade = next(t for t in found["trades"] if t["name"] == one["name"])
    assert trade["chosen"] == one["to"]
    assert [c["type"] for c in trade["choices"]][0] == "q2_K"


VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())  # noqa: SIM905


class Page(HTMLParser):
    """Collects tags, and everything a page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.links += [value for key, value in attrs if key in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_stands_alone(job: quantize.Job, tmp_path: Path) -> None:
    made = report.of_job(job, "<out>.gguf")
    made.notes.append("a <b>note</b> & more")
    report.write(made, tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == [] and page.links == [] and "url(" not in text and "import" not in text
    assert page.tags.count("svg") > 4 and page.tags.count("polyline") > 6
    assert "&lt;out&gt;.gguf" in text and "a &lt;b&gt;note&lt;/b&gt; &amp; more" in text
    assert "What was weighed" in text
    assert not re.search(r'="(nan|inf)', text)


def test_a_page_of_a_copy_says_that_nothing_changed(tmp_path: Path) -> None:
    models.write("names", tmp_path / "in.gguf")
    with quantize.prepare(tmp_path / "in.gguf", "COPY") as made:
        quantize.run(made, tmp_path / "out.gguf", measure=True)
    report.write(report.of_job(made, "out.gguf"), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    assert "No tensor has changed." in text and "No value has changed." in text


def test_files_with_different_tensors(tmp_path: Path) -> None:
    def write(name: str, tensors: dict[str, Any]) -> Path:
        writer = GGUFWriter(tmp_path / name)
        for tensor, array in tensors.items():
            kind = 0 if array.dtype == np.float32 else 1
            writer.add_tensor(tensor, array.shape[::-1], kind, array.nbytes)
        writer.write([array.tobytes() for array in tensors.values()])
        return tmp_path / name

    one = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    a = write("a", {"same": one, "gone": one, "shape": one, "flat": one[:1]})
    b = write("b", {"same": one.astype("<f2"), "new": one, "shape": one.T.copy(), "flat": one[0]})
    with open_gguf(a) as x, open_gguf(b) as y:
        found = compare.compare(x, y)
    assert [one.name for one in found.tensors] == ["flat", "same"]
    assert (found.only_in_first, found.only_in_second) == (["gone"], ["new"])
    assert found.other_shape == ["shape"]
    errors = {one.name: one.error for one in found.tensors}
    assert errors["flat"].errors == 0
    expected = np.abs(one.astype("<f2").astype(np.float32) - one).max()
    assert errors["same"].largest == pytest.approx(expected)
    assert found.total.n == 16
    notes = report.of_comparison(found, ("a", "b")).notes
    assert notes == [
        "only in the first file: gone",
        "only in the second file: new",
        "of another shape: shape",
    ]


def test_reports_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a report is a .json or a .html file"):
        report.check_path(tmp_path / "r.txt")
    with pytest.raises(OutputError, match="does not exist"):
        report.check_path(tmp_path / "none" / "r.html")
    model = tmp_path / "m.html"
    model.write_text("x")
    with pytest.raises(OutputError, match="is the input"):
        report.check_path(model, inputs=[model])
