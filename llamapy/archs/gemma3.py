"""gemma3: norms before and after each part, q/k norms, and five windowed layers to every full
one."""

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

HF = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {
        "attn_norm": hf.plus_one("input_layernorm"),
        "attn_q_norm": hf.plus_one("self_attn.q_norm"),
        "attn_k_norm": hf.plus_one("self_attn.k_norm"),
        "post_attention_norm": hf.plus_one("post_attention_layernorm"),
        "ffn_norm": hf.plus_one("pre_feedforward_layernorm"),
        "post_ffw_norm": hf.plus_one("post_feedforward_layernorm"),
    }
) | {"output_norm": hf.plus_one("model.norm")}
KEYS = (
    *hf.STANDARD_KEYS,
    "final_logit_softcapping",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
)
VOCAB = hf.Vocabulary(("spm", "spm_json"), after=hf.no_prefix_space)
DROPPED = ("^lm_head",)
BIASED = ()
N_LAYER_27B = 62  # the one size whose scores are scaled by n_embd / n_head; no key says so


def _window_every(config: hf.Config) -> int | None:
    """How many layers there are to one that sees everything, if not the usual 6."""
    kinds = config.get("layer_types") or []
    every = kinds.index("full_attention") + 1 if "full_attention" in kinds else None
    every = every or config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    return None if every == 6 else every


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """window_every: of so many layers the last one sees everything, the others `n_window`
    positions."""

    window_every: int = key("attention.sliding_window_pattern", hf=_window_every, default=6)
    rope_freq_base_window: float = key("rope.freq_base_swa", hf="rope.theta_swa", default=10000.0)
    final_softcap: float = key("final_logit_softcapping", hf="final_logit_softcapping", default=0.0)


def build(g: Step, w: Weights, p: Params) -> Tensor:
    full = p.rope("neox")
    near = p.rope("neox", freq_base=p.rope_freq_base_window, freq_scale=1.0)
    scale = 1 / sqrt(p.n_embd // p.n_head) if p.n_layer == N_LAYER_27B else 1 / sqrt(p.n_embd_head)
    x = embed(g, w, p, scale=sqrt(p.n_embd))  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        sees_all = not p.n_window or (p.window_every and (i + 1) % p.window_every == 0)
        y = attention(
            g,
            rms_norm(g, x, blk, "attn_norm", p),
            blk,
            p,
            rope=full if sees_all else near,
            window=0 if sees_all else p.n_window,
            scale=scale,
            qk_norm="head",
        )
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(rms_norm(g, y, blk, "post_attention_norm", p), x)
        y = gated_ffn(g, rms_norm(g, x, blk, "ffn_norm", p), blk, p.n_ff, act="gelu")
        x = g.tap(f"blk.{i}.out", g.add(rms_norm(g, y, blk, "post_ffw_norm", p), x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p, softcap=p.final_softcap)
