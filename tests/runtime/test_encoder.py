"""Models without a cache: an architecture that is dropped in as a file, whose tokens all see each
other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamapy import archs
from llamapy.core.errors import BatchError
from llamapy.gguf.writer import GGUFWriter
from llamapy.nn.trace import trace
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from tests.archs.naive import softmax

FILE = '''
"""toy-encoder: embeddings, learned positions, one attention that looks both ways."""
from dataclasses import dataclass
from llamapy.nn import params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed, embed_positions

HF, NAMES, BIASED = (), {}, ()

@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Nothing more."""

def build(g, w, p):
    x = g.add(embed(g, w, p), embed_positions(g, w, p))
    for i, blk in w.blocks(p.n_layer):
        x = g.add(attention(g, x, blk, p), x)
    return g.tap("result_norm", g.wanted(x)[0])
'''


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    import sys

    (tmp_path / "toy_encoder.py").write_text(FILE)
    monkeypatch.setattr(archs, "__path__", [*archs.__path__, str(tmp_path)])
    from llamapy.core import discover

    toy = discover.load("llamapy.archs", "toy_encoder")
    p = toy.Params.of(
        arch="toy-encoder", n_vocab=30, n_ctx_train=16, n_embd=8, n_layer=1, n_head=2, causal=False
    )
    writer = GGUFWriter(tmp_path / "toy.gguf")
    writer.add("general.architecture", "toy-encoder")
    writer.add("toy-encoder.vocab_size", 30)
    for key, value in p.to_metadata().items():
        writer.add(key, value)
    rng, data = np.random.default_rng(5), []
    for name, ne in trace(toy, p).shapes.items():
        data.append(rng.standard_normal(ne[::-1]).astype(np.float32))
        writer.add_tensor(name, ne, 0, data[-1].nbytes)
    writer.write([array.view(np.uint8) for array in data])
    yield Model(tmp_path / "toy.gguf")
    sys.modules.pop("llamapy.archs.toy_encoder", None)


def naive(model: Model, ids: list[int]) -> np.ndarray:
    w = {n: t.buffer.owner.view("<f4").reshape(t.ne[1::-1]) for n, t in model.tensors.items()}
    x = w["token_embd.weight"][ids] + w["position_embd.weight"][: len(ids)]
    q, k, v = ((x @ w[f"blk.0.attn_{n}.weight"].T).reshape(-1, 2, 4) for n in "qkv")
    out = [softmax(q[:, h] @ k[:, h].T / 2) @ v[:, h] for h in range(2)]
    return x + np.concatenate(out, 1) @ w["blk.0.attn_output.weight"].T


@pytest.mark.parametrize("flash", [True, False])
def test_all_see_all_of_their_sequence(model: Model, flash: bool) -> None:
    a, b = [3, 4, 5, 6, 7], [9, 8, 7]
    context = Context(model, backend="reference", flash_attn=flash, n_seq_max=2, embeddings=True)
    batch = Batch(a + b, sequences=[0] * 5 + [1] * 3, outputs="all")
    got = context.decode(batch)
    want = np.concatenate([naive(model, a), naive(model, b)])
    assert got.shape == (8, 8) and np.allclose(got, want, atol=1e-5)
    assert np.array_equal(context.embeddings, got)
    assert np.allclose(context.decode(Batch(b)), want[-1:], atol=1e-5)  # nothing is remembered
    with pytest.raises(BatchError, match="at most 16 fit"):
        context.decode(Batch([1] * 17))
