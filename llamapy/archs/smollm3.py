"""smollm3: a Llama whose every fourth layer has no rotary position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

HF = ("SmolLM3ForCausalLM",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {
        "attn_q": hf.pairs("self_attn.q_proj", "n_head"),
        "attn_k": hf.pairs("self_attn.k_proj", "n_head_kv"),
    }
)
KEYS = (*hf.STANDARD_KEYS, "vocab_size", "rope.dimension_count")
VOCAB = hf.Vocabulary(("spm", "spm_json", "bpe"), before=hf.prefix_space, after=hf.odd_sizes)
BIASED = ()
NO_ROPE_EVERY = 4  # fixed by the model


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Heads are turned whole."""

    n_rot: int = key("rope.dimension_count", hf=hf.head_dim, default=lambda p: p.n_embd_head)


def adjust(config: hf.Config) -> dict[str, Any]:
    """Refuse another pattern of layers without rotation."""
    layers = config.get("no_rope_layers") or []
    usual = all(bool(n) == bool((i + 1) % NO_ROPE_EVERY) for i, n in enumerate(layers))
    return hf.require(config, usual, f"every {NO_ROPE_EVERY}th layer is without rotation")


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("norm")
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = rms_norm(g, x, blk, "attn_norm", p)
        y = attention(g, y, blk, p, rope=rope if (i + 1) % NO_ROPE_EVERY else None)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
