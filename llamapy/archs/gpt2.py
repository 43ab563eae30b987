"""gpt2: learned positions, layer norms, biases everywhere; its matrices lie on their side."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed, embed_positions
from llamapy.nn.ffn import plain_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import layer_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("GPT2LMHeadModel",)
NAMES = hf.decoder(
    {
        "attn_norm": "ln_1",
        "attn_qkv": hf.transposed("attn.c_attn"),
        "attn_output": hf.transposed("attn.c_proj"),
        "ffn_norm": "ln_2",
        "ffn_up": hf.transposed("mlp.c_fc"),
        "ffn_down": hf.transposed("mlp.c_proj"),
    },
    prefix="",
    blocks="h",
    embeddings="wte",
    norm="ln_f",
) | {"position_embd": "wpe"}
KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_epsilon",
    "general.file_type",
)
BIASED = ("attn_norm", "attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down", "output_norm")


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """n_ff is four times n_embd, whatever is said."""

    n_ff: int = key("feed_forward_length", hf=lambda c: 4 * int(c["n_embd"]))


def build(g: Step, w: Weights, p: Params) -> Tensor:
    x = embed(g, w, p)  # [n_embd, n_tokens]
    x = g.add(x, embed_positions(g, w, p))
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, layer_norm(g, x, blk, "attn_norm", p), blk, p, fused=True)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = plain_ffn(g, layer_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, layer_norm(g, x, w, "output_norm", p), w, p)
