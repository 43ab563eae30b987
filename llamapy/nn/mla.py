"""Multi-head latent attention: what is kept of a token is one vector that all heads read.

From it the heads' keys and values would be made by two matrices; instead the queries are taken
through the first (transposed), and the result through the second, so that the cache stays small.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn.attention import attend
from llamapy.nn.cache import Layer
from llamapy.nn.linear import linear
from llamapy.nn.norm import rms_norm
from llamapy.nn.rope import Rope
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def mla(g: Step, x: Tensor, w: Weights, p: Any, rope: Rope, stretch: float) -> Tensor:
    """x [n_embd, n_tokens] through attn_q (or attn_q_a, attn_q_b), attn_kv_a_mqa, attn_k_b,
    attn_v_b, attn_output of block `w`.

    p        has n_head, n_lora_q, n_lora_kv, n_head_k_mla, n_head_v_mla, n_rot
    stretch  multiplies the scores (of long contexts)
    """
    n_tokens, n_own = x.ne[1], p.n_head_k_mla - p.n_rot
    q = g.reshape(_queries(g, x, w, p), [p.n_head_k_mla, p.n_head, n_tokens])
    own, turned = _parts(g, q, n_own, p.n_rot)
    both = linear(g, x, w, "attn_kv_a_mqa", p.n_lora_kv + p.n_rot)
    both = g.reshape(both, [p.n_lora_kv + p.n_rot, 1, n_tokens])
    latent, k_turned = _parts(g, both, p.n_lora_kv, p.n_rot)
    turned, k_turned = (rope.turn(g, t, g.positions) for t in (turned, k_turned))
    latent = rms_norm(g, latent, w, "attn_kv_a_norm", p)
    k_b = w("attn_k_b.weight", n_own, p.n_lora_kv, p.n_head)
    absorbed = g.mul_mat(k_b, g.permute(own, (0, 2, 1, 3)))  # [n_lora_kv, n_tokens, n_head]
    absorbed = g.cont(g.permute(absorbed, (0, 2, 1, 3)))
    layer = Layer(
        index=w.index,
        n_head_kv=1,
        n_k=p.n_lora_kv + p.n_rot,
        n_v=p.n_lora_kv,
        v_in_k=True,
        rope=rope,
        rope_offset=p.n_lora_kv,
    )
    q, k = g.concat(absorbed, turned, dim=0), g.concat(latent, k_turned, dim=0)
    y = attend(g, q, k, None, layer, scale=stretch / sqrt(p.n_head_k_mla))
    y = g.permute(g.reshape(y, [p.n_lora_kv, p.n_head, n_tokens]), (0, 2, 1, 3))
    y = g.mul_mat(w("attn_v_b.weight", p.n_lora_kv, p.n_head_v_mla, p.n_head), y)
    y = g.reshape(g.cont(g.permute(y, (0, 2, 1, 3))), [p.n_head_v_mla * p.n_head, n_tokens])
    return linear(g, y, w, "attn_output", p.n_embd)


def _queries(g: Step, x: Tensor, w: Weights, p: Any) -> Tensor:
    n_out = p.n_head * p.n_head_k_mla
    if not p.n_lora_q or w.has("attn_q.weight"):  # some files say a rank and have none
        return linear(g, x, w, "attn_q", n_out)
    low = rms_norm(g, linear(g, x, w, "attn_q_a", p.n_lora_q), w, "attn_q_a_norm", p)
    return linear(g, low, w, "attn_q_b", n_out)


def _parts(g: Step, x: Tensor, n: int, n_turned: int) -> tuple[Tensor, Tensor]:
    """The first n values of each head of x [size, heads, n_tokens], and the n_turned after them."""
    first = g.cont(g.view(x, (n, *x.ne[1:3]), x.nb[:3], 0))
    second = g.cont(g.view(x, (n_turned, *x.ne[1:3]), x.nb[:3], n * x.nb[0]))
    return first, second
