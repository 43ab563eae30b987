"""Every architecture against transformers: logits of tiny models, 64 tokens, on both backends.

What transformers computes is recorded in fixtures/archs (tools/record_archs.py), from the very
weights that are converted here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from llamapy.core import discover
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.tasks import convert
from tests.convert import folders

if TYPE_CHECKING:
    from peer import Peer

TOLERANCE = 1e-4  # of the largest value


@pytest.fixture(scope="module", params=folders.CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    name = request.param
    folder = tmp_path_factory.mktemp("case")
    # Called phi3, it would need tokens that llama.cpp looks for by that name.
    options = convert.Options(outtype="f32", output=folder / "model.gguf", model_name="tiny")
    paths = convert.run(convert.prepare(folders.assemble(name, folder), options))
    yield name, Model(paths[0])


def computed(model: Model, ids: np.ndarray, backend: str, n_ctx: int) -> np.ndarray:
    context = Context(
        model,
        n_ctx=n_ctx,
        backend=backend,
        type_k="f32",
        type_v="f32",
        threads=1,
        embeddings=not model.params.causal,
    )
    logits = context.decode(Batch(ids, outputs="all"))
    return logits if model.params.causal else context.embeddings


@pytest.mark.golden
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_as_transformers(case: tuple[str, Model], backend: str) -> None:
    name, model = case
    truth = folders.truth(name)
    ids, columns = truth["ids"], truth["columns"]
    assert len(ids) == 64
    for ending, n_ctx in (("", 128), ("_short", 32)):
        if f"values{ending}" not in truth:
            continue
        want = truth[f"values{ending}"]
        got = computed(model, ids[: len(want)], backend, n_ctx)[:, columns]
        assert np.abs(got - want).max() < TOLERANCE * np.abs(want).max()


@pytest.mark.golden
def test_in_two_steps(case: tuple[str, Model]) -> None:
    """What is in the cache gives the same as what is computed at once."""
    name, model = case
    if not model.params.causal:
        pytest.skip("encoders see a text at once")
    truth = folders.truth(name)
    context = Context(model, n_ctx=128, type_k="f32", type_v="f32", threads=1)
    parts = [context.decode(Batch(ids, outputs="all")) for ids in np.split(truth["ids"], [40, 63])]
    got = np.concatenate(parts)[:, truth["columns"]]
    assert np.abs(got - truth["values"]).max() < TOLERANCE * np.abs(truth["values"]).max()


def test_every_architecture_is_recorded() -> None:
    recorded = {folders.facts(name) and name.split("-")[0] for name in folders.CASES}
    others = {"mistral": "llama", "mixtral": "llama", "nomic": "nomic_bert"}
    assert {others.get(name, name) for name in recorded} == set(discover.names("llamapy.archs"))


# llama.cpp takes GELU's tanh form for all (and rounds it to halves), keeps keys and values as
# halves, and ranks the groups of all experts by two of them.
PEER_ERROR = 1e-5  # squares, relative
WITH_GELU = {"falcon", "falcon-40b", "gptneox", "gptneox-serial"}
# It knows these by their numbers of layers: with two it does not turn heads of Baichuan at all,
# and takes no DeepSeek without a rank of queries.
BY_LAYERS = {"baichuan": 32, "deepseek2-lite": 27}


@pytest.mark.peer
def test_peer_agrees(case: tuple[str, Model], peer: Peer) -> None:
    """llama.cpp loads what we convert, and says the same."""
    name, model = case
    if name in BY_LAYERS:
        pytest.skip("llama.cpp takes it for another model, as it has two layers: see below")
    truth = folders.truth(name)
    ids, want = truth["ids"].tolist(), truth["values"]
    encoder = {} if model.params.causal else {"embeddings": True, "pooling": "none"}
    with peer.open(model.path) as theirs, theirs.context(n_ctx=256, **encoder) as context:
        got = np.asarray(context.embed(ids) if encoder else context.logits(ids))
    error = distance(got[:, truth["columns"]], want)
    assert error < (1e-3 if name in WITH_GELU or encoder else PEER_ERROR)


@pytest.mark.peer
@pytest.mark.parametrize("name", BY_LAYERS)
def test_peer_agrees_on_many_layers(name: str, peer: Peer, tmp_path: Path) -> None:
    """With its last layer repeated until llama.cpp sees which model it is."""
    folder, n_layer = folders.assemble(name, tmp_path), BY_LAYERS[name]
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = folders.read_safetensors(file)
    last = {key: value for key, value in tensors.items() if ".layers.1." in key}
    for i in range(2, n_layer):
        tensors |= {key.replace(".layers.1.", f".layers.{i}."): v for key, v in last.items()}
    folders.write_safetensors(file, tensors)
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": n_layer}))
    options = convert.Options(outtype="f32", output=tmp_path / "model.gguf")
    model = Model(convert.run(convert.prepare(folder, options))[0])
    ids = folders.truth(name)["ids"]
    with peer.open(model.path) as theirs, theirs.context(n_ctx=256) as context:
        got = np.asarray(context.logits(ids.tolist()))
    assert distance(got, computed(model, ids, "cpu", 128)) < 10 * PEER_ERROR


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a - b) ** 2).sum() / (b**2).sum())
