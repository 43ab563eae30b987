"""baichuan: a Llama with one matrix for queries, keys and values; the 13B model has ALiBi."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.head import head
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def _third(k: int) -> hf.Fold:
    """A third of W_pack; queries and keys with the pairs of each head as neighbours."""

    def part(w: hf.Array, p: Params) -> hf.Array:
        own = w[k * len(w) // 3 : (k + 1) * len(w) // 3]
        if k == 2:
            return own
        halves = own.reshape(p.n_head, 2, -1, *own.shape[1:])
        return halves.swapaxes(1, 2).reshape(own.shape)

    return hf.rows("self_attn.W_pack", part)


HF = ("BaichuanForCausalLM", "BaiChuanForCausalLM")
NAMES = hf.decoder(hf.LLAMA_BLOCK | {"attn_q": _third(0), "attn_k": _third(1), "attn_v": _third(2)})
KEYS = (*hf.STANDARD_KEYS, "tensor_data_layout", "rope.dimension_count")
VOCAB = hf.Vocabulary(("spm",))
BIASED = ()
N_LAYER_13B = 40  # the size with ALiBi; no key says so
MAX_BIAS = 8.0


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Heads are turned whole."""

    n_ctx_train: int = key(
        "context_length", hf=("max_position_embeddings", "model_max_length"), default=4096
    )
    layout: str = key("tensor_data_layout", hf=lambda c: "Meta AI original pth", default="")
    n_rot: int = key("rope.dimension_count", hf=hf.head_dim, default=lambda p: p.n_embd_head)


def build(g: Step, w: Weights, p: Params) -> Tensor:
    alibi = p.n_layer == N_LAYER_13B
    rope = None if alibi else p.rope("norm")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = rms_norm(g, x, blk, "attn_norm", p)
        y = attention(g, y, blk, p, rope=rope, max_bias=MAX_BIAS if alibi else 0.0)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
