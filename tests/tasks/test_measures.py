"""Comparisons, pictures, logprobs, and the commands that show them."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from llamapy.cli.main import run
from llamapy.core.errors import ContextFullError, LlamapyError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.logprobs import logprobs
from llamapy.tasks.compare_quants import compare
from llamapy.tasks.perplexity import perplexity
from llamapy.tasks.plot import BLUE, HEIGHT, WIDTH, Dot, Point, html, shapes, svg, ticks
from llamapy.tasks.plot_png import png
from tests.tasks.conftest import TINY, text_of, tiny

Ids = Callable[..., np.ndarray]


def test_models_are_compared_with_the_first(ids: Ids) -> None:
    tokens, models = ids(3 * 24), [tiny("llama"), tiny("llama"), tiny("llama-moe")]
    same, again, other = compare(models, tokens, n_ctx=24, threads=1)
    assert abs(again.divergence.mean_kld.value) < 1e-6
    assert other.divergence.mean_kld.value > 0.01
    want = perplexity(tiny("llama-moe"), tokens, n_ctx=24, threads=1)
    assert other.divergence.ppl.value == pytest.approx(want.ppl, rel=1e-5)
    assert other.divergence.ppl_base.value == pytest.approx(same.divergence.ppl.value, rel=1e-5)
    assert same.n_bytes == tiny("llama").n_bytes
    assert same.divergence.n_chunks == 3


def test_a_comparison_needs_models_of_one_kind(ids: Ids) -> None:
    with pytest.raises(UsageError):
        compare([tiny("llama")], ids(100))
    others = [n for n in ("qwen2", "gemma3") if tiny(n).n_vocab != tiny("llama").n_vocab]
    for name in others:
        with pytest.raises(LlamapyError, match="quants of one model"):
            compare([tiny("llama"), tiny(name)], ids(100), n_ctx=16)


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [(0, 10, [0, 2, 4, 6, 8, 10]), (0.013, 0.052, [0.01, 0.02, 0.03, 0.04, 0.05, 0.06])],
)
def test_ticks(low: float, high: float, found: list[float]) -> None:
    assert ticks(low, high) == found
    assert len(ticks(5, 5)) > 1


def test_a_picture_holds_its_points_and_names() -> None:
    points = [Point("a<b", 10, 0.5, 0.1), Point("c", 10.1, 0.5), Point("d", 20, 0)]
    drawn = shapes("T & t", "x", "y", points)
    root = ET.fromstring(svg(drawn))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}circle")) == 3
    texts = {t.text: t for t in root.iter(f"{space}text")}
    assert {"a<b", "c", "d", "T & t"} <= set(texts)
    assert texts["a<b"].get("y") != texts["c"].get("y")  # they do not cover each other
    for circle in root.findall(f"{space}circle"):
        assert 0 < float(circle.get("cx", 0)) < 760 and 0 < float(circle.get("cy", 0)) < 460
    assert "<td>&lt;1&gt;</td>" in html("t", "", ["a"], [["<1>"]])


def test_a_png_shows_the_same_shapes() -> None:
    points = [Point("left", 10, 0.5, 0.1), Point("right", 20, 0)]
    drawn = shapes("Title", "x", "y", points)
    picture = Image.open(BytesIO(png(drawn)))
    assert picture.format == "PNG"
    scale = picture.width / WIDTH
    assert picture.height == HEIGHT * scale
    for shape in drawn:
        if isinstance(shape, Dot):
            at = (round(shape.x * scale), round(shape.y * scale))
            assert picture.getpixel(at) == ImageColor.getrgb(BLUE)
    darkest = picture.convert("L")
    # Texts: the title's letters above, those of the label of y at the left, nothing in the corner.
    assert darkest.crop(_box(330, 10, 430, 30, scale)).getextrema()[0] < 60
    assert darkest.crop(_box(5, 200, 25, 260, scale)).getextrema()[0] < 60
    assert darkest.crop(_box(0, 0, 60, 40, scale)).getextrema() == (255, 255)


def _box(left: int, top: int, right: int, bottom: int, scale: float) -> tuple[int, ...]:
    return tuple(round(v * scale) for v in (left, top, right, bottom))


def test_png_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.ImageFont", raising=False)
    with pytest.raises(LlamapyError, match=r"pillow .*llamapy\[plot\]"):
        png([])


def test_logprobs_are_log_softmax(ids: Ids) -> None:
    model, tokens = tiny("llama"), ids(20).tolist()
    options = {"backend": "reference", "type_k": "f32", "type_v": "f32"}
    found = model.logprobs(tokens, top_k=3, **options)
    z = Context(model, n_ctx=20, **options).decode(Batch(tokens, outputs="all")).astype(float)
    log_p = z - np.log(np.exp(z).sum(1, keepdims=True))
    assert [one.token for one in found] == tokens
    assert found[0].logprob is None and found[0].top == []
    for i, one in enumerate(found[1:]):
        assert one.logprob == pytest.approx(log_p[i, tokens[i + 1]], abs=1e-5)
        assert one.rank == (log_p[i] > log_p[i, tokens[i + 1]]).sum()
        best = np.argsort(-log_p[i])[:3]
        assert [a.token for a in one.top] == best.tolist()
        assert [a.logprob for a in one.top] == pytest.approx(log_p[i, best], abs=1e-5)


def test_logprobs_of_too_long_a_text(ids: Ids) -> None:
    with pytest.raises(ContextFullError, match="has 20 tokens, but the context only 8"):
        logprobs(tiny("llama"), ids(20).tolist(), n_ctx=8)
    with pytest.raises(UsageError):
        logprobs(tiny("llama"), [])


# -- the commands


def test_command_logprobs(capfd: pytest.CaptureFixture[str]) -> None:
    model = str(TINY / "llama.gguf")
    assert run(["logprobs", "-m", model, "-p", "the cat is red", "--json", "-k", "2"]) == 0
    found = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(found) == len(tiny("llama").tokenize("the cat is red"))
    assert all(len(one["top"]) == 2 and one["logprob"] < 0 for one in found[1:])
    assert run(["logprobs", "-m", model, "-p", "the cat is red", "-k", "2"]) == 0
    assert "sum of log p: -" in capfd.readouterr().out


def test_command_divergence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, base = tmp_path / "text.txt", tmp_path / "base"
    text.write_text(text_of(200))
    model, options = str(TINY / "llama.gguf"), ["-c", "32", "-t", "1"]
    saved = ["perplexity", "-m", model, "-f", str(text), "--save-logits", str(base), *options]
    assert run(saved) == 0
    capfd.readouterr()
    assert run(["perplexity", "-m", model, "--kl-base", str(base), "-t", "1"]) == 0
    out = capfd.readouterr().out
    for line in ("Mean PPL(Q)  ", "Mean    KLD:", "Median  Δp:", "Same top p: ", "99.9%   KLD:"):
        assert line in out
    head, *rows = out.splitlines()[: out.splitlines().index("")]
    assert head.split()[:2] == ["chunk", "PPL"] and rows
    assert [int(row.split()[0]) for row in rows] == list(range(1, len(rows) + 1))
    assert all(row.count("±") == 5 and row.count("%") == 2 for row in rows)
    last = next(line for line in out.splitlines() if line.startswith("Mean PPL(Q)  "))
    assert float(rows[-1].split()[1]) == pytest.approx(float(last.split()[3]), abs=1e-4)
    command = ["perplexity", "-m", model, "--kl-base", str(base), "--chunks", "2", "--json"]
    assert run([*command, "-t", "1"]) == 0
    assert json.loads(capfd.readouterr().out)["n_chunks"] == 2
    assert run(["perplexity", "-m", model, "--kl-base", str(text)]) == 1
    assert "no file of log-probabilities" in capfd.readouterr().err


def test_command_compare(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text, plot = tmp_path / "text.txt", tmp_path / "plot.html"
    text.write_text(text_of(200))
    models = [str(TINY / f"{name}.gguf") for name in ("llama", "llama-moe")]
    command = ["perplexity", "--compare", *models, "-f", str(text), "-c", "32", "-t", "1"]
    assert run([*command, "--plot", str(plot)]) == 0
    out = capfd.readouterr().out
    assert "llama-moe.gguf" in out and "same top" in out
    assert "<svg" in plot.read_text() and "llama-moe" in plot.read_text()
    picture = tmp_path / "plot.png"
    assert run([*command, "--plot", str(picture), "--chunks", "2"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run([*command, "--plot", str(tmp_path / "plot.gif")]) == 2
