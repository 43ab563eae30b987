"""Embeddings: pooling and norms by closed forms, batches as single texts, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import fetch_models
import numpy as np
import pytest

from llamapy.core.errors import FetchError, ModelError, UsageError
from llamapy.runtime.model import Model
from llamapy.tasks import convert, embed
from tests.convert import folders

RECORDED = Path(__file__).parents[2] / "fixtures" / "embed" / "minilm.json"
TEXTS = ["The sky is blue", "she said", "the rain in the mountains would stop", "a"]


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("bert")
    options = convert.Options(outtype="f32", output=folder / "bert.gguf")
    return Model(convert.run(convert.prepare(folders.assemble("bert", folder), options))[0])


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("llama")
    options = convert.Options(outtype="f32", output=folder / "llama.gguf")
    return Model(convert.run(convert.prepare(folders.assemble("llama", folder), options))[0])


def vectors(model: Model, **options: object) -> list[np.ndarray]:
    return embed.embed(model, TEXTS, backend="reference", **options)  # type: ignore[arg-type]


def test_pooling_of_the_file(bert: Model) -> None:
    """The recorded folder says mean; the mean is that of the tokens' vectors."""
    assert bert.params.pooling_type == 1
    each = vectors(bert, pooling="none", normalize=-1)
    means = vectors(bert, normalize=-1)
    assert [len(states) for states in each] == [len(bert.tokenize(t)) for t in TEXTS]
    for states, mean in zip(each, means):
        assert np.allclose(states.mean(axis=0), mean, atol=1e-6)
    firsts, lasts = (vectors(bert, pooling=way, normalize=-1) for way in ("cls", "last"))
    for states, first, last in zip(each, firsts, lasts):
        assert np.array_equal(states[0], first) and np.array_equal(states[-1], last)


def test_texts_do_not_see_each_other(bert: Model) -> None:
    together = vectors(bert)
    for text, vector in zip(TEXTS, together):
        (alone,) = embed.embed(bert, [text], backend="reference")
        assert np.allclose(alone, vector, atol=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_norms(p: int, bert: Model) -> None:
    for vector in vectors(bert, normalize=p):
        assert abs((np.abs(vector.astype(np.float64)) ** p).sum() - 1) < 1e-5


def test_norm_of_sixteen_bits() -> None:
    got = embed.normalized(np.array([0.5, -2.0, 1.0], np.float32), 0)
    assert got.tolist() == [8190.0, -32760.0, 16380.0]
    assert embed.normalized(np.zeros(3, np.float32), 2).tolist() == [0, 0, 0]


def test_causal_models(causal: Model) -> None:
    """The last token's state does not depend on how it was computed; nothing is left in memory."""
    last = vectors(causal, pooling="last", normalize=-1)
    each = vectors(causal, normalize=-1)
    for one, states in zip(last, each):
        assert np.array_equal(states[-1], one)


def test_refusals(bert: Model, causal: Model) -> None:
    with pytest.raises(UsageError, match="pooling is 'sum'"):
        vectors(bert, pooling="sum")
    with pytest.raises(ModelError, match="ranks"):
        vectors(bert, pooling="rank")
    with pytest.raises(UsageError, match=r"text 1 has \d+ tokens, the model's context 128"):
        embed.embed(causal, ["a", "z" * 400])


def test_command(bert: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from llamapy.cli.main import run

    def said(*arguments: str) -> str:
        assert run(["embed", "-m", bert.path, *arguments]) == 0
        return capsys.readouterr().out

    (tmp_path / "lines.txt").write_text("\n".join(TEXTS) + "\n")
    shown = said("-f", str(tmp_path / "lines.txt"))
    assert [line.split(":")[0] for line in shown.splitlines()] == [
        f"embedding {i}" for i in range(4)
    ]
    found = json.loads(said("-p", TEXTS[0], "-p", TEXTS[1], "--json"))
    rows = json.loads(said("-p", TEXTS[0], "-p", TEXTS[1], "--output-format", "array"))
    assert [one["embedding"] for one in found["data"]] == rows
    out = tmp_path / "v.npy"
    said("-f", str(tmp_path / "lines.txt"), "--output-format", "npy", "-o", str(out))
    assert np.allclose(np.load(out)[:2], rows, atol=1e-6)


@pytest.mark.model
@pytest.mark.golden
def test_minilm_as_transformers(tmp_path: Path) -> None:
    """The real model, converted to F32: the vectors that transformers computes."""
    try:
        folder = fetch_models.minilm()
    except FetchError as error:
        pytest.skip(str(error))
    options = convert.Options(outtype="f32", output=tmp_path / "minilm.gguf")
    (path,) = convert.run(convert.prepare(folder, options))
    rows = json.loads(RECORDED.read_text())
    assert len(rows) == 6
    found = embed.embed(Model(path), [row["text"] for row in rows])
    for row, vector in zip(rows, found):
        assert len(row["vector"]) == vector.size == 384
        assert float(np.dot(vector.reshape(-1).astype(np.float64), row["vector"])) >= 0.99999
