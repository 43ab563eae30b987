"""qwen2: Qwen 2 and 2.5. A Llama whose queries, keys and values have biases; halves turn
together."""

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

HF = ("Qwen2ForCausalLM", "Qwen2Model")
NAMES = hf.decoder(hf.LLAMA_BLOCK)
KEYS = (*hf.STANDARD_KEYS, "pooling_type")
VOCAB = hf.Vocabulary(("spm", "bpe"))
BIASED = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Nothing beyond the common keys."""


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
