"""phi3: Phi 3 and 4. One matrix for queries, keys and values, one for gate and up; frequency
factors for long contexts."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Any

import numpy as np

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import fused_gated_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.rope import with_factors
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("Phi3ForCausalLM",)
NAMES = hf.decoder(
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
FIRST_KEYS = ("rope.scaling.attn_factor",)
KEYS = (
    "context_length",
    "rope.scaling.original_context_length",
    "embedding_length",
    "feed_forward_length",
    "block_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_count",
    "rope.freq_base",
    "general.file_type",
    "attention.sliding_window",
)
VOCAB = hf.Vocabulary(("spm", "bpe", "spm_json"), as_declared=True)
BIASED = ()


def EXTRA(p: Params, config: hf.Config) -> dict[str, Any]:
    """The frequency factors, which checkpoints keep in the configuration."""
    rope = config["rope"]
    if not rope.get("long_factor"):
        return {}
    return {f"rope_factors_{n}.weight": np.float32(rope[f"{n}_factor"]) for n in ("long", "short")}


def _attn_factor(config: hf.Config) -> float | None:
    """What turned queries and keys are multiplied by, so that scores keep their spread."""
    rope, trained = config["rope"], config.get("max_position_embeddings")
    if not rope.get("long_factor") or not trained:
        return None
    original = rope["n_ctx_orig"]
    scale = trained / original
    if rope["scaling"] == "yarn":
        return 0.1 * log(scale) + 1.0 if scale > 1.0 else 1.0
    return sqrt(1 + log(scale) / log(original)) if scale > 1.0 else 1.0


def _n_rot(config: hf.Config) -> int:
    fraction = config["rope"].get("partial_rotary_factor") or 1.0
    return int(fraction * config["hidden_size"]) // int(config["num_attention_heads"])


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """The window is not used: llama.cpp leaves it out, and so were the files made."""

    n_rot: int = key("rope.dimension_count", hf=_n_rot, default=lambda p: p.n_embd_head)
    n_window: int = key(
        "attention.sliding_window", hf=lambda c: c.get("sliding_window") or 0, default=0
    )
    rope_attn_factor: float = key("rope.scaling.attn_factor", hf=_attn_factor, default=1.0)
    rope_n_ctx_orig: int = key(
        "rope.scaling.original_context_length",
        hf=("rope.n_ctx_orig", "max_position_embeddings"),
        default=lambda p: p.n_ctx_train,
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = with_factors(g, w, p, p.rope("neox"))
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope, fused=True)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = fused_gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
