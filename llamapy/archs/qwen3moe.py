"""qwen3moe: Qwen 3 with experts, whose weights are made to sum to one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.head import head
from llamapy.nn.moe import Routing, moe
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("Qwen3MoeForCausalLM",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
    | hf.QWEN_EXPERTS
)
KEYS = (*hf.STANDARD_KEYS, "expert_feed_forward_length", "expert_shared_feed_forward_length")
BIASED = ()


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """n_ff_exp: width of an expert; if the file does not say, experts share n_ff."""

    n_ff_exp: int = key(
        "expert_feed_forward_length",
        hf="moe_intermediate_size",
        default=lambda p: p.n_ff // max(1, p.n_expert_used),
    )


def adjust(config: hf.Config) -> dict[str, Any]:
    """Refuse what the graph does not have: layers without experts, weights that do not sum to 1."""
    every = config.get("decoder_sparse_step", 1) == 1 and not config.get("mlp_only_layers")
    return hf.require(config, every, "every layer has experts") | hf.require(
        config, config.get("norm_topk_prob", True), "norm_topk_prob is true"
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    routing = Routing(p.n_expert, p.n_expert_used, normalize=True)
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = rms_norm(g, x, blk, "attn_norm", p)
        y = attention(g, y, blk, p, rope=rope, qk_norm="head")
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = moe(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff_exp, routing)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
