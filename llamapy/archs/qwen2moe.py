"""qwen2moe: Qwen 2 with experts, and a shared one behind a gate that every token takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.head import head
from llamapy.nn.moe import Routing, moe, shared_ffn
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("Qwen2MoeForCausalLM",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | hf.QWEN_EXPERTS
    | {
        "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
        "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
        "ffn_up_shexp": "mlp.shared_expert.up_proj",
        "ffn_down_shexp": "mlp.shared_expert.down_proj",
    }
)
KEYS = (*hf.STANDARD_KEYS, "expert_feed_forward_length", "expert_shared_feed_forward_length")
BIASED = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """n_ff_exp, n_ff_shexp: widths of an expert and of the shared one."""

    n_ff_exp: int = key(
        "expert_feed_forward_length",
        hf="moe_intermediate_size",
        default=lambda p: p.n_ff // max(1, p.n_expert_used),
    )
    n_ff_shexp: int = key(
        "expert_shared_feed_forward_length",
        hf="shared_expert_intermediate_size",
        default=lambda p: p.n_ff,
    )


def adjust(config: hf.Config) -> dict[str, Any]:
    """Refuse what the graph does not have: layers without experts, weights that sum to 1."""
    every = config.get("decoder_sparse_step", 1) == 1 and not config.get("mlp_only_layers")
    return hf.require(config, every, "every layer has experts") | hf.require(
        config, not config.get("norm_topk_prob", False), "norm_topk_prob is false"
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    routing = Routing(p.n_expert, p.n_expert_used)
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = rms_norm(g, x, blk, "ffn_norm", p)
        shared = shared_ffn(g, y, blk, p.n_ff_shexp)
        y = g.add(moe(g, y, blk, p.n_ff_exp, routing), shared)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
