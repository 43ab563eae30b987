"""olmo2: norms after each part instead of before it, queries and keys normalised as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import rms_norm
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("Olmo2ForCausalLM",)
NAMES = hf.decoder(
    {name: way for name, way in hf.LLAMA_BLOCK.items() if not name.endswith("norm")}
    | {
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "post_attention_norm": "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
BIASED = ()


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Nothing beyond the common keys."""


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, x, blk, p, rope=rope, qk_norm="all")
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(rms_norm(g, y, blk, "post_attention_norm", p), x)
        y = gated_ffn(g, x, blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(rms_norm(g, y, blk, "post_ffw_norm", p), x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
