"""deepseek2: DeepSeek V2, V3 and R1. Keys and values are kept as one short vector a token (MLA);
most layers have experts, of which some are shared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.embed import embed
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.head import head
from llamapy.nn.mla import mla
from llamapy.nn.moe import Routing, moe, shared_ffn
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")
SOFTMAX, SIGMOID = 1, 2  # llama.cpp's numbers of gating functions


def _by_head(w: hf.Array, p: Params) -> hf.Array:
    """kv_b_proj by heads: [n_head, the key's own part and the value, n_lora_kv]."""
    return w.reshape(p.n_head, -1, w.shape[-1])


NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | hf.QWEN_EXPERTS
    | {f"ffn_{n}_shexp": f"mlp.shared_experts.{n}_proj" for n in ("gate", "up", "down")}
    | {
        "attn_q_a": "self_attn.q_a_proj",
        "attn_q_a_norm": "self_attn.q_a_layernorm",
        "attn_q_b": "self_attn.q_b_proj",
        "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
        "attn_kv_a_norm": "self_attn.kv_a_layernorm",
        "attn_k_b": hf.rows(
            "self_attn.kv_b_proj",
            lambda w, p: _by_head(w, p)[:, : p.n_head_k_mla - p.n_rot].swapaxes(1, 2),
        ),
        "attn_v_b": hf.rows(
            "self_attn.kv_b_proj", lambda w, p: _by_head(w, p)[:, p.n_head_k_mla - p.n_rot :]
        ),
        "exp_probs_b": "mlp.gate.e_score_correction",
    }
)
OWN_KEYS = (
    "leading_dense_block_count",
    "vocab_size",
    "attention.q_lora_rank",
    "attention.kv_lora_rank",
    "attention.key_length_mla",
    "attention.value_length_mla",
    "expert_feed_forward_length",
    "expert_shared_count",
    "expert_weights_scale",
    "expert_weights_norm",
    "rope.dimension_count",
    "rope.scaling.yarn_log_multiplier",
)
KEYS = hf.STANDARD_KEYS + OWN_KEYS
BIASED = ()


def _gating(config: hf.Config) -> int | None:
    v3 = "DeepseekV3ForCausalLM" in config.get("architectures", [])
    given = config.get("scoring_func") or ("sigmoid" if v3 else None)
    return {"softmax": SOFTMAX, "sigmoid": SIGMOID}.get(str(given))


def _log_mul(config: hf.Config) -> float | None:
    given = config["rope"].get("mscale_all_dim")
    return None if given is None else 0.1 * given


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """A token's memory is n_embd_head values: n_lora_kv that make keys and values, and n_rot turned
    ones that all heads share. n_head_k_mla and n_head_v_mla are the heads' sizes after that."""

    n_head_kv: int = key("attention.head_count_kv", hf=lambda c: 1, default=1)
    n_embd_head: int = key(
        "attention.key_length", hf=lambda c: c.get("kv_lora_rank", 512) + c["qk_rope_head_dim"]
    )
    n_embd_head_v: int = key("attention.value_length", hf=("kv_lora_rank", lambda c: 512))
    n_rot: int = key("rope.dimension_count", hf="qk_rope_head_dim")
    n_lora_q: int = key("attention.q_lora_rank", hf="q_lora_rank", default=0)
    n_lora_kv: int = key("attention.kv_lora_rank", hf=("kv_lora_rank", lambda c: 512))
    n_head_k_mla: int = key(
        "attention.key_length_mla", hf=lambda c: c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    )
    n_head_v_mla: int = key("attention.value_length_mla", hf="v_head_dim")
    n_dense: int = key("leading_dense_block_count", hf="first_k_dense_replace", default=0)
    n_ff_exp: int = key("expert_feed_forward_length", hf="moe_intermediate_size", default=0)
    n_shared: int = key("expert_shared_count", hf=("n_shared_experts", lambda c: 0), default=0)
    expert_scale: float = key("expert_weights_scale", hf="routed_scaling_factor", default=1.0)
    expert_norm: bool = key(
        "expert_weights_norm", hf=lambda c: c.get("norm_topk_prob") or None, default=False
    )
    gating: int = key("expert_gating_func", hf=_gating, default=SOFTMAX)
    n_group: int = key("expert_group_count", hf="n_group", default=1)
    n_group_used: int = key("expert_group_used_count", hf="topk_group", default=1)
    rope_yarn_log_mul: float = key("rope.scaling.yarn_log_multiplier", hf=_log_mul, default=0.0)


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope, stretch = p.rope("norm"), 1.0
    if p.rope_scaling == "yarn" and p.rope_yarn_log_mul:  # the scores grow, not the rotation
        growth = log(1.0 / p.freq_scale)
        rope = replace(rope, attn_factor=1.0 / (1.0 + 0.1 * growth))
        stretch = (1.0 + p.rope_yarn_log_mul * growth) ** 2
    sigmoid = p.gating == SIGMOID
    routing = Routing(
        p.n_expert,
        p.n_expert_used,
        gating="sigmoid" if sigmoid else "softmax",
        normalize=p.expert_norm,
        scale=p.expert_scale,
        n_group=p.n_group,
        n_group_used=p.n_group_used,
        group_best=2 if sigmoid else 1,
    )
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = mla(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope, stretch)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = rms_norm(g, x, blk, "ffn_norm", p)
        if i < p.n_dense:
            y = gated_ffn(g, y, blk, p.n_ff)
        else:
            shared = shared_ffn(g, y, blk, p.n_ff_exp * p.n_shared)
            y = g.add(moe(g, y, blk, p.n_ff_exp, routing), shared)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
