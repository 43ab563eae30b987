"""Every architecture on its tiny models against the float64 twins in naive.py, on every backend."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import make_tiny
import numpy as np
import pytest

from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from tests.archs import naive

if TYPE_CHECKING:
    from peer import Peer

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
FILES = sorted(name for name, tiny in make_tiny.MODELS.items() if tiny.arch in naive.MODELS)
IDS = np.random.default_rng(1).integers(6, 280, 40).tolist()
HAS_CPU = importlib.util.find_spec("llamapy.backend.cpu.device") is not None

# Largest allowed error (squares, relative) for a cache of this type on the reference backend, whose
# products are
# exact to float32, and on the CPU, which also rounds activations to 8 bits where weights are
# quantized.
CACHES = {"f32": 1e-12, "f16": 2e-6, "bf16": 2e-4, "q8_0": 2e-3}
FLOAT_FILES = ("llama", "llama-moe", "qwen2", "gemma3")


@pytest.fixture(scope="module", params=FILES)
def case(request: pytest.FixtureRequest) -> tuple[Model, np.ndarray]:
    path = TINY / f"{request.param}.gguf"
    return Model(path), naive.logits(path, IDS)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(((got - want) ** 2).sum() / (want**2).sum())


def fits(model: Model, kind: str) -> bool:
    return kind != "q8_0" or model.params.n_embd_head % 32 == 0


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
@pytest.mark.parametrize("kind", CACHES)
def test_reference(case: tuple[Model, np.ndarray], kind: str, flash: bool) -> None:
    model, want = case
    if not fits(model, kind):
        pytest.skip("heads of 16 do not divide into q8_0 blocks")
    context = Context(
        model, n_ctx=64, backend="reference", type_k=kind, type_v=kind, flash_attn=flash
    )
    got = context.decode(Batch(IDS, outputs="all"))
    assert error(got, want) < CACHES[kind]


@pytest.mark.skipif(not HAS_CPU, reason="the CPU backend is not there yet")
@pytest.mark.parametrize("flash", [True, False], ids=["flash", "plain"])
def test_cpu(case: tuple[Model, np.ndarray], flash: bool) -> None:
    model, want = case
    context = Context(model, n_ctx=64, flash_attn=flash, threads=2)
    got = context.decode(Batch(IDS, outputs="all"))
    quantized = Path(model.path).stem not in FLOAT_FILES
    assert error(got, want) < (1e-2 if quantized else 1e-5)


@pytest.mark.peer
def test_peer(case: tuple[Model, np.ndarray], peer: Peer) -> None:
    """The twins themselves against llama.cpp, whose caches are f16 and whose activations are 8
    bits."""
    model, want = case
    with peer.open(model.path) as theirs, theirs.context(n_ctx=256) as context:
        got = context.logits(IDS)
    quantized = Path(model.path).stem not in FLOAT_FILES
    assert error(got, want) < (1e-2 if quantized else 1e-5)
