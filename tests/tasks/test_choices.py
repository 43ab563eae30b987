"""Tests of choice: reading the three formats, drawing tasks, scoring."""

from __future__ import annotations

import random
import struct
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from llamapy.cli.main import run
from llamapy.core.errors import LlamapyError
from llamapy.runtime.model import Model
from llamapy.tasks import choices
from llamapy.tasks.choices import Score, Task, score
from tests.tasks.conftest import TINY, tiny

OPTIONS = {"threads": 1, "type_k": "f32", "type_v": "f32", "n_ctx": 128}
SWAG = "\n".join(f"the cat {i}\n{i % 4}\nis red\nis on it\nwas big\nran" for i in range(9)) + "\n"
GRANDE = '0,"the cat, and the dog is _ on it and red",big,a,2\n1,the _ is red on it,dog,cat,1\n'


def binary(tasks: list[tuple[str, list[str], list[int]]]) -> bytes:
    """A multiple choice file, as its description says."""

    def text(s: str) -> bytes:
        return struct.pack("<I", len(s)) + s.encode()

    bodies = []
    for question, answers, labels in tasks:
        mc = struct.pack("<I", len(answers)) + b"".join(map(text, answers))
        mc += struct.pack(f"<{len(labels)}i", *labels)
        bodies.append(text(question) + mc + struct.pack("<I", 0))
    at, positions = 4 + 4 * len(tasks), []
    for body in bodies:
        positions.append(at)
        at += len(body)
    return struct.pack(f"<{len(tasks) + 1}I", len(tasks), *positions) + b"".join(bodies)


def test_the_twister_is_the_standard_one() -> None:
    """The 10000th number of std::mt19937 with its default seed is in the C++ standard; with seed 1
    the first ones are those of every MT19937 (numpy's own here: init_genrand)."""
    draw = choices._twister()
    assert [draw() for _ in range(3)] == [1791095845, 4282876139, 3093770124]


def test_reading() -> None:
    swag = choices.hellaswag(SWAG.encode())
    assert len(swag) == 9 and len({task.texts[0] for task in swag}) == 9
    assert all(len(task.texts) == 4 for task in swag)
    assert len(choices.hellaswag(SWAG.encode(), 4)) == 4
    first, second = choices.winogrande(GRANDE.encode())
    assert first.texts[0] == b"the cat, and the dog is big on it and red" and first.right == {1}
    assert second.prefixes == [b"the dog", b"the cat"] and second.right == {0}
    data = binary([(f"q{i}", ["a", "bc"], [0, 1]) for i in range(5)])
    found = choices.multiple_choice(data)
    assert [t.texts for t in found] == [[f"q{i} a".encode(), f"q{i} bc".encode()] for i in range(5)]
    assert found[0].right == {1}
    drawn = choices.multiple_choice(data, 3)
    assert len({t.texts[0] for t in drawn}) == 3


@pytest.mark.parametrize("length", [0, 3, 8, 20, 40])
def test_a_truncated_file_is_an_error(length: int) -> None:
    with pytest.raises(LlamapyError):
        choices.multiple_choice(binary([("q", ["a", "b"], [1, 0])] * 3)[:length])


def test_wrong_texts() -> None:
    for wrong in (b"", b"one line\n", b"a\n9\nb\nc\nd\ne\n"):
        with pytest.raises(LlamapyError):
            choices.hellaswag(wrong)
    with pytest.raises(LlamapyError, match="no Winogrande task"):
        choices.winogrande(b"0,no gap,a,b,1\n")


def naive(model: Model, ids: list[int], start: int, end: int) -> float:
    scored = model.logprobs(ids, backend="reference", type_k="f32", type_v="f32")
    return float(np.mean([one.logprob for one in scored[start:end]]))


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_scores_are_mean_logprobs_of_what_differs(name: str) -> None:
    model, got = tiny(name), []
    tasks = choices.hellaswag(SWAG.encode(), 2) + choices.winogrande(GRANDE.encode())
    score(model, tasks, on_task=lambda outcome, so_far: got.append(outcome), **OPTIONS)
    for task, outcome in zip(tasks, got):
        ids = [model.tokenize(text) for text in task.texts]
        shared = next(i for i, column in enumerate(zip(*ids)) if len(set(column)) > 1)
        want = []
        for i, one in enumerate(ids):
            start, end = shared, len(one)
            if task.prefixes:
                if all(len(other) - shared > 3 for other in ids):
                    start = len(model.tokenize(task.prefixes[i]))
                end -= len(one) - start > 1
            want.append(naive(model, one, start, end))
        assert outcome.scores == pytest.approx(want, abs=1e-4)
        assert outcome.chosen == int(np.argmax(want))
        assert outcome.right == (outcome.chosen in task.right)


def test_statistics() -> None:
    found = Score(400, 100, 1600)
    assert found.accuracy == 0.25 and found.chance == 0.25
    assert found.error == pytest.approx(sqrt(0.25 * 0.75 / 399))
    low, high = found.interval  # Wilson: the roots of (p - x)^2 = z^2 x (1 - x) / n
    for x in (low, high):
        assert (0.25 - x) ** 2 == pytest.approx(choices.Z95**2 * x * (1 - x) / 400)


def test_a_task_that_does_not_fit() -> None:
    words = " ".join(random.Random(0).choice("abc") for _ in range(200)).encode()
    with pytest.raises(LlamapyError, match="the context 128"):
        score(tiny("llama"), [Task([b"a b " + words, b"a c " + words], {0})], **OPTIONS)


@pytest.mark.parametrize("kind", ["hellaswag", "winogrande", "multiple-choice"])
def test_command(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tasks"
    texts = {"hellaswag": SWAG.encode(), "winogrande": GRANDE.encode()}
    path.write_bytes(texts.get(kind) or binary([("the cat", ["is red", "ran"], [1, 0])] * 2))
    assert run(["perplexity", "-m", str(TINY / "llama.gguf"), f"--{kind}", str(path)]) == 0
    assert "%" in capfd.readouterr().out
