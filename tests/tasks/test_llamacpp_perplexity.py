"""What llama-perplexity printed of tiny models (fixtures/measures, tools/record_measures.py): our
figures are its figures, and its files are read."""

from __future__ import annotations

import json
import re
from math import log
from pathlib import Path

import numpy as np
import pytest

from llamapy.cli import divergence_text
from llamapy.cli.main import run
from llamapy.tasks import choices
from llamapy.tasks.divergence import diverge, save_logits
from llamapy.tasks.logits_file import open_logits
from llamapy.tasks.perplexity import perplexity
from tests.tasks.conftest import TINY, tiny

FOLDER = Path(__file__).parents[2] / "fixtures" / "measures"
EXACT = {"threads": 1, "type_k": "f32", "type_v": "f32"}
N_CTX, N_CHUNKS = 32, 8
NUMBER = re.compile(r"-?\d+\.\d+")


def said(name: str) -> str:
    return (FOLDER / f"{name}.out.txt").read_text()


def running(text: str) -> list[float]:
    return [float(x) for x in re.findall(r"\[\d+\]([\d.]+),", text)]


def test_an_f32_model_chunk_by_chunk() -> None:
    out = said("perplexity-llama")
    found = perplexity(tiny("llama"), (FOLDER / "text.txt").read_text(), n_ctx=N_CTX, **EXACT)
    assert [c.running for c in found.chunks] == pytest.approx(running(out), rel=1e-6)
    ppl, error = re.search(r"PPL = ([\d.]+) \+/- ([\d.]+)", out).groups()  # type: ignore[union-attr]
    assert found.ppl == pytest.approx(float(ppl), rel=1e-6)
    assert found.ppl_err == pytest.approx(float(error), rel=1e-5)


# Random weights make perplexities of e^20 to e^80: what counts is their logarithm.
@pytest.mark.parametrize(
    ("name", "off_exact", "off_rounded"),
    [("llama-moe", 0.05, 1e-3), ("llama-tied", 0.1, 6e-3), ("llama-k", 0.3, 3e-3)],
)
def test_rounded_activations_give_their_figures(
    name: str, off_exact: float, off_rounded: float
) -> None:
    """F16, blocks of 32 and blocks of 256: ten times as near as exact products, or more. (What is
    left: sums in another order let a few numbers fall on the other side of a half.)"""
    theirs = np.log(running(said(f"perplexity-{name}")))
    text = (FOLDER / "text.txt").read_text()
    off = []
    for activations in ("exact", "q8"):
        found = perplexity(tiny(name), text, n_ctx=N_CTX, activations=activations, **EXACT)
        off.append(np.abs([log(c.running) for c in found.chunks] - theirs).max())
    assert off[1] < off_rounded and 7 * off[1] < off[0] < off_exact, off


def test_strided_perplexity() -> None:
    found = perplexity(
        tiny("llama"), (FOLDER / "text.txt").read_text(), n_ctx=192, stride=64, **EXACT
    )
    assert [c.running for c in found.chunks] == pytest.approx(running(said("strided")), rel=1e-6)


def test_divergence_says_what_theirs_says() -> None:
    """From their file of log-probabilities: the same lines with the same numbers."""
    rows = [divergence_text.HEAD]
    found = diverge(
        tiny("llama-moe"),
        open_logits(FOLDER / "llama.logits"),
        activations="q8",
        on_chunk=lambda chunk, _, d: rows.append(divergence_text.chunk_row(chunk.number, d)),
        **EXACT,
    )
    assert found.n_chunks == N_CHUNKS
    ours = [line for line in [*rows, *divergence_text.lines(found)] if line]
    theirs = [line for line in said("divergence").splitlines()[1:] if line]
    assert len(ours) == len(theirs) > 40
    for mine, other in zip(ours, theirs):
        assert NUMBER.sub("", mine).split() == NUMBER.sub("", other).split()
        numbers = [float(x) for x in NUMBER.findall(other)]
        got = [float(x) for x in NUMBER.findall(mine)]
        assert got == pytest.approx(numbers, rel=2e-3, abs=2e-3), other


def test_log_probabilities_are_written_as_they_do(tmp_path: Path) -> None:
    path, text = tmp_path / "ours", (FOLDER / "text.txt").read_text()
    save_logits(tiny("llama"), text, path, n_ctx=N_CTX, chunks=N_CHUNKS, **EXACT)
    ours, theirs = open_logits(path), open_logits(FOLDER / "llama.logits")
    assert path.stat().st_size == (FOLDER / "llama.logits").stat().st_size
    assert (ours.tokens == theirs.tokens).all()
    for chunk in range(N_CHUNKS):
        n = N_CTX - 1 - N_CTX // 2
        # Codes may round to the next: a step is 16 nats / 65535 at most.
        assert np.abs(ours.rows(chunk, 0, n) - theirs.rows(chunk, 0, n)).max() < 5e-4


@pytest.mark.parametrize("n", [110, 30])
@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("hellaswag", "hellaswag.txt"),
        ("winogrande", "winogrande.csv"),
        ("multiple_choice", "choice.bin"),
    ],
)
def test_every_task_of_choices(kind: str, file: str, n: int) -> None:
    """The running score after each task, and so which tasks are drawn in which order; of Winogrande
    both choices' scores; errors and intervals."""
    out = said(f"{kind.replace('_', '-')}-{n}")
    rows = re.findall(r"^(\d+)\t(.*)", out, re.M)
    theirs = [[float(x) for x in re.findall(r"-?[\d.]+", row)] for _, row in rows]
    assert [int(i) for i, _ in rows] == list(range(1, n + 1))
    ours: list[list[float]] = []

    def note(outcome: choices.Outcome, s: choices.Score) -> None:
        more = {"hellaswag": [100 * x for x in s.interval], "multiple_choice": []}
        named = [*outcome.scores, outcome.chosen + 1]
        ours.append([100 * s.accuracy, *more.get(kind, named)])

    tasks = getattr(choices, kind)((FOLDER / file).read_bytes(), n)
    score = choices.score(tiny("llama"), tasks, on_task=note, n_ctx=256, **EXACT)
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == pytest.approx(other[: len(mine)], abs=1e-4), (i, tasks[i])
    final = re.search(r"Final.*: ([\d.]+) \+/- ([\d.]+)", out)
    assert (final is not None) == (kind == "multiple_choice" or (kind, n) == ("winogrande", 110))
    if final:
        shown = (f"{100 * score.accuracy:.4f}", f"{100 * score.error:.4f}")
        assert shown == final.groups()
    chance = re.search(r"Random chance: ([\d.]+) \+/- ([\d.]+)", out)
    if chance:
        shown = (f"{100 * score.chance:.4f}", f"{100 * score.chance_error:.4f}")
        assert shown == chance.groups()


def test_the_command_rounds_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    """Their perplexity of a model in blocks of 256, over three chunks; other words are misuse."""
    line = [
        "perplexity",
        "-m",
        str(TINY / "llama-k.gguf"),
        "-f",
        str(FOLDER / "text.txt"),
        "--json",
    ]
    line += ["-c", str(N_CTX), "--chunks", "3", "-t", "1", "--ctk", "f32", "--ctv", "f32"]
    assert run([*line, "--activations", "q8"]) == 0
    figures = [chunk["running"] for chunk in json.loads(capfd.readouterr().out)["chunks"]]
    assert figures == pytest.approx(running(said("perplexity-llama-k"))[:3], rel=1e-4)
    assert run([*line, "--activations", "q9"]) == 2
    assert "exact and q8" in capfd.readouterr().err
