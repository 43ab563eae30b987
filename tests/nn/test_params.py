"""Hyperparameters from both sides, rotations, and folding of checkpoints."""

from __future__ import annotations

from dataclasses import replace
from math import cos, log

import numpy as np
import pytest

from llamapy.archs import gemma3, llama, qwen2
from llamapy.core.errors import ModelError
from llamapy.nn import hf
from llamapy.nn.rope import Rope
from llamapy.nn.trace import trace
from tests.nn.blocks import close, params, run

# as in the config.json of small models of these kinds
LLAMA = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
GEMMA3 = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 6,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "head_dim": 48,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window": 32,
    "sliding_window_pattern": 6,
}


def test_from_config() -> None:
    p = llama.Params.from_config(LLAMA, arch="llama", n_vocab=100, where="config.json")
    assert (p.n_embd, p.n_ff, p.n_head, p.n_head_kv, p.n_embd_head, p.n_rot) == (
        64,
        96,
        4,
        2,
        16,
        16,
    )
    assert (p.rope_freq_base, p.norm_rms_eps, p.n_ctx_train) == (500000.0, 1e-5, 128)
    g = gemma3.Params.from_config(GEMMA3, arch="gemma3", n_vocab=100, where="config.json")
    assert (g.n_embd_head, g.n_window, g.window_every, g.rope_freq_base_window) == (48, 32, 6, 1e4)
    nested = {**LLAMA, "rope_theta": None, "rope_parameters": {"rope_theta": 7.0}}
    q = qwen2.Params.from_config(nested, arch="qwen2", n_vocab=100, where="config.json")
    assert q.rope_freq_base == 7.0
    with pytest.raises(ModelError, match="config.json: no hidden_size or n_embd or d_model"):
        llama.Params.from_config(
            {"max_position_embeddings": 1}, arch="llama", n_vocab=1, where="config.json"
        )


def test_to_metadata() -> None:
    p = llama.Params.from_config(LLAMA, arch="llama", n_vocab=100, where="x")
    found = p.to_metadata()
    assert found["llama.embedding_length"] == 64 and found["llama.rope.freq_base"] == 500000.0
    assert "llama.attention.key_length" not in found  # as it would be without the key
    assert replace(p, n_embd_head=32).to_metadata()["llama.attention.key_length"] == 32


def test_windows_of_gemma3() -> None:
    p = gemma3.Params.from_config(GEMMA3, arch="gemma3", n_vocab=100, where="x")
    layers = trace(gemma3, p).layers
    assert [layer.window for layer in layers] == [32, 32, 32, 32, 32, 0]
    bases = [layer.rope.freq_base for layer in layers if layer.rope]
    assert bases == [1e4] * 5 + [1e6]


def test_trace_of_biases() -> None:
    p = qwen2.Params.from_config(LLAMA, arch="qwen2", n_vocab=100, where="x")
    shapes = trace(qwen2, p).shapes
    assert shapes["blk.1.attn_k.bias"] == (32,) and "blk.0.attn_output.bias" not in shapes
    assert "output.weight" not in shapes and shapes["blk.0.attn_v.weight"] == (64, 32)


def test_yarn() -> None:
    """attn_factor times the op's own 1 + 0.1 ln(factor) is the ratio of mscales (Hugging Face's
    yarn)."""
    p = params(rope_scaling="yarn", rope_factor=8.0, rope_n_ctx_orig=32)
    rope = p.rope("neox")
    assert rope.freq_scale == 1 / 8 and rope.ext_factor == 1.0 and rope.n_ctx_orig == 32
    assert rope.attn_factor * (1 + 0.1 * log(8)) == pytest.approx(1 + 0.1 * log(8))
    both = params(rope_scaling="yarn", rope_factor=8.0, rope_yarn_log_mul=0.5).rope("neox")
    want = (1 + 0.1 * log(8)) / (1 + 0.05 * log(8))
    assert both.attn_factor * (1 + 0.1 * log(8)) == pytest.approx(want)
    assert params(rope_factor=4.0).freq_scale == 0.25
    assert params(rope_factor=4.0, rope_scaling="none").freq_scale == 1.0
    assert params(rope_scale_linear=2.0).freq_scale == 0.5


def test_turning_by_a_difference() -> None:
    """A key turned to 3 and then by 4 is the key turned to 7, with YaRN's magnitude counted
    once."""
    rope = Rope(4, "norm", n_ctx_orig=8, freq_scale=0.25, ext_factor=1.0, attn_factor=1.3)
    x = np.random.default_rng(0).standard_normal((1, 4)).astype(np.float32)

    def turned(at: int, by: int) -> np.ndarray:
        def block(g, x, w):  # type: ignore[no-untyped-def]
            y = rope.turn(g, g.reshape(x, [4, 1, 1]), g.input("at", "i32", [1]))
            return rope.by_delta().turn(g, y, g.input("by", "i32", [1])) if by else y

        return run(block, x, inputs={"at": np.array([at]), "by": np.array([by])})[0]

    assert close(turned(3, 4), turned(7, 0))
    plain = run(
        lambda g, x, w: Rope(2, "norm").turn(g, g.reshape(x, [4, 1, 1]), g.input("at", "i32", [1])),
        np.array([[1, 0, 5, 6]], np.float32),
        inputs={"at": np.array([2])},
    )[0]
    assert plain.reshape(-1)[0] == pytest.approx(cos(2)) and plain.reshape(-1)[2:].tolist() == [
        5,
        6,
    ]


def test_folds() -> None:
    """Row r of a head's first half and row r of its second become neighbours."""
    p = params(n_head=2, n_head_kv=1, n_embd=8)
    fold = hf.pairs("self_attn.q_proj", "n_head")
    w = np.arange(8)[:, None] * np.ones((8, 3))
    assert fold.make([w], p)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert fold.make([np.arange(8)], p).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert hf.plus_one("x").make([np.array([0.5, -1])], p).tolist() == [1.5, 0.0]
    assert hf.experts("e.{e}").make([w, w], p).shape == (2, 8, 3)
    names = llama.NAMES
    assert names["token_embd"] == "model.embed_tokens" and names["output"] == "lm_head"
    assert names["blk.{i}.ffn_up"] == "model.layers.{i}.mlp.up_proj"
    q = names["blk.{i}.attn_q"]
    assert isinstance(q, hf.Fold) and q.sources == ("model.layers.{i}.self_attn.q_proj",)
