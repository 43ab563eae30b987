"""gemma: embeddings times sqrt(n_embd), GELU gates, and heads wider than the model's part."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import rms_norm
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("GemmaForCausalLM",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {
        "attn_norm": hf.plus_one("input_layernorm"),
        "ffn_norm": hf.plus_one("post_attention_layernorm"),
    },
    norm=hf.plus_one("norm"),
)
KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "general.file_type",
)
DROPPED = ("^lm_head",)  # the embeddings again
BIASED = ()


def _after(config: hf.Config, tokenizer: hf.Config) -> dict[str, Any]:
    """The end of a turn, which has one id in all Gemmas, and no space in front of a text."""
    return {"tokenizer.ggml.eot_token_id": 107, **hf.no_prefix_space(config, tokenizer)}


VOCAB = hf.Vocabulary(("spm", "spm_json"), after=_after)


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Nothing beyond the common keys."""


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p, scale=sqrt(p.n_embd))  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff, act="gelu")
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
