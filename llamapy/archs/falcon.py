"""falcon: attention and network side by side, of one norm (7B) or one each (40B); few key heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
    """Rows that stand in groups of queries, their key and their value, in three blocks."""
    groups = w.reshape(p.n_head_kv, p.n_head // p.n_head_kv + 2, -1, *w.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([part.reshape(-1, *w.shape[1:]) for part in parts])


HF = ("FalconForCausalLM", "RWForCausalLM")
NAMES = hf.decoder(
    {
        "attn_norm": ("input_layernorm", "ln_mlp"),
        "attn_norm_2": "ln_attn",
        "attn_qkv": hf.rows("self_attention.query_key_value", _by_kind),
        "attn_output": "self_attention.dense",
        "ffn_up": "mlp.dense_h_to_4h",
        "ffn_down": "mlp.dense_4h_to_h",
    },
    prefix="transformer.",
    blocks="h",
    embeddings="word_embeddings",
    norm="ln_f",
)
KEYS = (
    "context_length",
    "tensor_data_layout",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_epsilon",
    "general.file_type",
)
BIASED = ("attn_norm", "output_norm")


def adjust(config: hf.Config) -> dict[str, Any]:
    """Refuse the first models, which have ALiBi and no parallel parts."""
    parallel = config.get("parallel_attn", True) or config.get("new_decoder_architecture")
    return hf.require(config, not config.get("alibi"), "alibi is false") | hf.require(
        config, parallel, "attention and network are parallel"
    )


def _n_head_kv(config: hf.Config) -> int:
    if config.get("new_decoder_architecture") or "n_head_kv" in config:
        return int(config.get("num_kv_heads") or config.get("n_head_kv") or 1)
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    return 1 if config.get("multi_query", True) else int(heads)


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """The context's length is in no configuration."""

    n_ctx_train: int = key("context_length", hf=lambda c: 2048)
    layout: str = key("tensor_data_layout", hf=lambda c: "jploski", default="")
    n_ff: int = key("feed_forward_length", hf=lambda c: 4 * int(c["hidden_size"]))
    n_head_kv: int = key("attention.head_count_kv", hf=_n_head_kv, default=lambda p: p.n_head)


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        norm = layer_norm(g, x, blk, "attn_norm", p)
        own = blk.has("attn_norm_2.weight")
        y = layer_norm(g, x, blk, "attn_norm_2", p) if own else norm
        y = attention(g, y, blk, p, rope=rope, fused=True)
        if i == p.n_layer - 1:
            x, y, norm = g.wanted(x, y, norm)
        y = g.add(plain_ffn(g, norm, blk, p.n_ff, act="gelu_erf"), y)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, layer_norm(g, x, w, "output_norm", p), w, p)
