"""gptneox: GPT-NeoX and Pythia. Attention and network side by side; part of each head is turned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import plain_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import layer_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def _by_kind(w: hf.Array, p: Params) -> hf.Array:
    """Rows that stand head by head as query, key, value, in three blocks."""
    heads = w.reshape(p.n_head, 3, -1, *w.shape[1:])
    return np.concatenate([heads[:, k].reshape(-1, *w.shape[1:]) for k in range(3)])


HF = ("GPTNeoXForCausalLM",)
NAMES = hf.decoder(
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": hf.rows("attention.query_key_value", _by_kind),
        "attn_output": "attention.dense",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    prefix="gpt_neox.",
    embeddings="embed_in",
    norm="final_layer_norm",
    head="embed_out",
)
KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "rope.dimension_count",
    "attention.head_count",
    "use_parallel_residual",
    "attention.layer_norm_epsilon",
    "rope.freq_base",
)
BIASED = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm")


def _n_rot(config: hf.Config) -> int:
    fraction = config["rope"].get("partial_rotary_factor")
    head = int(config["hidden_size"]) // int(config["num_attention_heads"])
    return int((0.25 if fraction is None else fraction) * head)


def _freq_base(config: hf.Config) -> float | None:
    base = config["rope"].get("theta")
    return None if base == 10000 else base


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """parallel: whether both parts of a layer see the same input."""

    n_head_kv: int = key("attention.head_count_kv", default=lambda p: p.n_head)
    n_rot: int = key("rope.dimension_count", hf=_n_rot, default=lambda p: p.n_embd_head)
    rope_freq_base: float = key("rope.freq_base", hf=_freq_base, default=10000.0)
    parallel: bool = key(
        "use_parallel_residual",
        hf=lambda c: bool(c.get("use_parallel_residual", True)),
        default=True,
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = layer_norm(g, x, blk, "attn_norm", p)
        y = attention(g, y, blk, p, rope=rope, fused=True)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        both = g.add(y, x)
        y = layer_norm(g, x if p.parallel else both, blk, "ffn_norm", p)
        y = plain_ffn(g, y, blk, p.n_ff, act="gelu_erf")
        x = g.tap(f"blk.{i}.out", g.add(y, both))
    return head(g, layer_norm(g, x, w, "output_norm", p), w, p)
