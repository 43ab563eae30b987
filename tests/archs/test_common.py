"""What holds for every architecture there is, with random weights: nothing to add for a new file,
unless its keys have no useful defaults (EXTRA)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.core import discover
from llamapy.gguf.writer import GGUFWriter
from llamapy.nn.trace import is_bias, trace
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model

ARCHS = discover.names("llamapy.archs")
SIZES: dict[str, Any] = {"n_ctx_train": 64, "n_embd": 48, "n_layer": 2, "n_ff": 64, "n_head": 3}
SIZES |= {"n_head_kv": 3, "norm_rms_eps": 1e-5, "norm_eps": 1e-5}
EXTRA: dict[str, dict[str, Any]] = {
    "deepseek2": {
        "n_head_kv": 1,
        "n_embd_head": 40,
        "n_embd_head_v": 32,
        "n_rot": 8,
        "n_lora_kv": 32,
        "n_head_k_mla": 24,
        "n_head_v_mla": 16,
        "n_lora_q": 16,
        "n_dense": 1,
        "n_ff_exp": 32,
        "n_shared": 1,
        "n_expert": 8,
        "n_expert_used": 2,
        "n_group": 4,
        "n_group_used": 2,
    },
    "gemma2": {"n_window": 8},
    "gemma3": {"n_window": 8, "window_every": 2},
    "qwen2moe": {"n_expert": 4, "n_expert_used": 2},
    "qwen3moe": {"n_expert": 4, "n_expert_used": 2},
}
IDS = np.random.default_rng(2).integers(0, 40, 24).tolist()


@pytest.fixture(scope="module", params=ARCHS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A small random model of the architecture."""
    name = request.param
    arch = name.replace("_", "-")
    module = discover.load("llamapy.archs", name)
    params = module.Params.of(arch=arch, n_vocab=40, **SIZES | EXTRA.get(name, {}))
    path: Path = tmp_path_factory.mktemp("archs") / f"{name}.gguf"
    writer, data, rng = GGUFWriter(path), [], np.random.default_rng(7)
    writer.add("general.architecture", arch)
    writer.add(f"{arch}.vocab_size", 40)
    for key, value in params.to_metadata().items():
        if key != f"{arch}.vocab_size":
            writer.add(key, value)
    for tensor, ne in trace(module, params).shapes.items():
        values = rng.standard_normal(ne[::-1]) / (np.sqrt(ne[0]) if len(ne) > 1 else 4)
        data.append((values + ("norm.weight" in tensor)).astype(np.float32))
        writer.add_tensor(tensor, ne, 0, data[-1].nbytes)
    writer.write([array.view(np.uint8) for array in data])
    return Model(path)


@pytest.fixture
def decoded(model: Model) -> Callable[..., np.ndarray]:
    """decoded(batch, flash_attn=...): what a fresh context with exact caches says."""

    def decoded(batch: Batch, **options: Any) -> np.ndarray:
        facts = {"n_ctx": 64, "backend": "reference", "type_k": "f32", "type_v": "f32"}
        return Context(model, **facts | options).decode(batch)

    return decoded


def close(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and float(((a - b) ** 2).sum()) <= 1e-9 * float((b**2).sum())


def test_attention_spelled_out(decoded: Callable[..., np.ndarray]) -> None:
    batch = Batch(IDS, outputs="all")
    assert close(decoded(batch, flash_attn=False), decoded(batch, flash_attn=True))


def test_outputs(decoded: Callable[..., np.ndarray]) -> None:
    """Asking for some outputs only changes nothing in them."""
    wanted = [i % 5 == 2 for i in range(len(IDS))]
    whole = decoded(Batch(IDS, outputs="all"))
    assert close(decoded(Batch(IDS, outputs=wanted)), whole[wanted])
    assert 0.01 < whole.std() < 100


def test_one_by_one(model: Model, decoded: Callable[..., np.ndarray]) -> None:
    """Token by token through the cache, as all at once; two sequences at once, as each alone."""
    if not model.params.causal:
        pytest.skip("an encoder keeps nothing")
    whole = decoded(Batch(IDS, outputs="all"))
    context = Context(model, n_ctx=64, backend="reference", type_k="f32", type_v="f32")
    assert close(np.concatenate([context.decode([t]) for t in IDS]), whole)
    mixed = [t for pair in zip(IDS, IDS[::-1]) for t in pair]
    batch = Batch(mixed, sequences=[0, 1] * len(IDS), outputs="all")
    both = decoded(batch, n_seq_max=2, n_ubatch=7)
    assert close(both[::2], whole)
    assert close(both[1::2], decoded(Batch(IDS[::-1], outputs="all")))


def test_order_matters(model: Model, decoded: Callable[..., np.ndarray]) -> None:
    """Positions reach the result."""
    turned = decoded(Batch([IDS[1], IDS[0], *IDS[2:]]))
    assert not close(turned, decoded(Batch(IDS)))


def test_checkpoint_names(model: Model) -> None:
    """Every tensor has a source in a checkpoint."""
    known = {name.replace("{i}", "0") for name in model.module.NAMES}
    stems = {
        name.rpartition(".")[0] for name in model.tensors if "blk." not in name or "blk.0." in name
    }
    assert stems <= known, stems - known
    assert all(isinstance(name, str) for name in model.module.HF) and model.module.HF


def test_biases(model: Model) -> None:
    """A model that does not say otherwise has no biases but those of BIASED."""
    biases = {name for name in model.tensors if name.endswith(".bias")}
    assert all(is_bias(model.module, name) for name in biases)
    ends = {name.removesuffix(".bias").rpartition(".")[2] for name in biases}
    assert ends <= set(model.module.BIASED)
