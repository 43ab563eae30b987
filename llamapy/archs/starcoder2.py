"""starcoder2: layer norms, biases everywhere, a plain GELU network."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import plain_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import layer_norm
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("Starcoder2ForCausalLM",)
NAMES = hf.decoder(
    {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    }
)
BIASED: tuple[str, ...] = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output")
BIASED += ("ffn_norm", "ffn_up", "ffn_down", "output_norm")


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Nothing beyond the common keys."""


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, layer_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = plain_ffn(g, layer_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, layer_norm(g, x, w, "output_norm", p), w, p)
