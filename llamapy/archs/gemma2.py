"""gemma2: norms before and after each part, limited scores, every other layer windowed."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

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

HF = ("Gemma2ForCausalLM",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {
        "attn_norm": hf.plus_one("input_layernorm"),
        "post_attention_norm": hf.plus_one("post_attention_layernorm"),
        "ffn_norm": hf.plus_one("pre_feedforward_layernorm"),
        "post_ffw_norm": hf.plus_one("post_feedforward_layernorm"),
    },
    norm=hf.plus_one("norm"),
)
KEYS = (
    "context_length",
    "embedding_length",
    "block_count",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.layer_norm_rms_epsilon",
    "attention.key_length",
    "attention.value_length",
    "general.file_type",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "attention.sliding_window",
)
VOCAB = hf.Vocabulary(("spm", "spm_json"), after=hf.no_prefix_space)
DROPPED = ("^lm_head",)  # the embeddings again
BIASED = ()
WINDOW_EVERY = 2  # of two layers the first sees n_window positions
N_LAYER_27B = 46  # the one size whose scores are scaled by n_embd / n_head; no key says so


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """Limits of scores and logits, and the window's width."""

    n_window: int = key("attention.sliding_window", hf="sliding_window", default=4096)
    attn_softcap: float = key("attn_logit_softcapping", hf="attn_logit_softcapping", default=50.0)
    final_softcap: float = key(
        "final_logit_softcapping", hf="final_logit_softcapping", default=30.0
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    scale = 1 / sqrt(p.n_embd // p.n_head) if p.n_layer == N_LAYER_27B else 1 / sqrt(p.n_embd_head)
    x = embed(g, w, p, scale=sqrt(p.n_embd))  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(
            g,
            rms_norm(g, x, blk, "attn_norm", p),
            blk,
            p,
            rope=rope,
            window=p.n_window if i % WINDOW_EVERY < WINDOW_EVERY - 1 else 0,
            scale=scale,
            softcap=p.attn_softcap,
        )
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(rms_norm(g, y, blk, "post_attention_norm", p), x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff, act="gelu")
        x = g.tap(f"blk.{i}.out", g.add(rms_norm(g, y, blk, "post_ffw_norm", p), x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p, softcap=p.final_softcap)
