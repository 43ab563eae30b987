"""Attention over a cache: grouped heads, q/k norms, windows, soft caps, ALiBi; in one op or spelled
out."""

from __future__ import annotations

from math import sqrt

from llamapy.graph import Builder, Tensor
from llamapy.nn.cache import Layer
from llamapy.nn.head import capped
from llamapy.nn.linear import finish, linear
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import Params
from llamapy.nn.rope import Rope, rotate
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def attention(
    g: Step,
    x: Tensor,
    w: Weights,
    p: Params,
    *,
    rope: Rope | None = None,
    window: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    max_bias: float = 0.0,
    qk_norm: str = "",
    fused: bool = False,
) -> Tensor:
    """The whole of it: x [n_embd, n_tokens] through attn_q, attn_k, attn_v (or attn_qkv),
    attn_output of block `w`.

    rope      turns queries and keys; None leaves them
    window    positions that a token sees, itself included; 0 is all
    scale     of the scores; 0 is the file's, else 1 / sqrt(head size)
    softcap   limits scores: c * tanh(score / c)
    max_bias  ALiBi's steepest slope
    qk_norm   "head": attn_q_norm and attn_k_norm for each head; "all": over all heads at once,
              before they part
    fused     the file has attn_qkv, one matrix for all three (taken too when only that is there)
    """
    q, k, v = qkv(g, x, w, p, fused=fused, norm_all=qk_norm == "all")
    if qk_norm == "head":
        q, k = rms_norm(g, q, w, "attn_q_norm", p), rms_norm(g, k, w, "attn_k_norm", p)
    q, k = rotate(g, rope, q, k)
    layer = Layer(
        index=w.index,
        n_head_kv=p.n_head_kv,
        n_k=p.n_embd_head,
        n_v=p.n_embd_head_v,
        window=window,
        max_bias=max_bias,
        causal=p.causal,
        rope=rope,
    )
    scale = scale or p.attn_scale or 1.0 / sqrt(p.n_embd_head)
    y = attend(g, q, k, v, layer, scale=scale, softcap=softcap)
    return linear(g, y, w, "attn_output", p.n_embd)


def qkv(
    g: Step, x: Tensor, w: Weights, p: Params, *, fused: bool = False, norm_all: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [n_embd_head, n_head, n_tokens], keys [n_embd_head, n_head_kv, n_tokens] and values
    of x."""
    sizes = (p.n_head * p.n_embd_head, p.n_head_kv * p.n_embd_head, p.n_head_kv * p.n_embd_head_v)
    heads = (
        (p.n_embd_head, p.n_head),
        (p.n_embd_head, p.n_head_kv),
        (p.n_embd_head_v, p.n_head_kv),
    )
    if fused or w.has("attn_qkv.weight"):
        rows = linear(g, x, w, "attn_qkv", sum(sizes))
        q, k, v = split_heads(g, rows, *heads)
        return q, k, v
    names = ("attn_q", "attn_k", "attn_v")
    # The three products stand side by side in the order of nodes: they read the same x.
    products = [
        g.expand(g.mul_mat(w(f"{name}.weight", x.ne[0], n), x)) for name, n in zip(names, sizes)
    ]
    flat = [finish(g, y, w, name, n) for y, name, n in zip(products, names, sizes)]
    if norm_all:
        flat[:2] = [rms_norm(g, t, w, f"{name}_norm", p) for t, name in zip(flat[:2], names)]
    q, k, v = (g.reshape(t, [*head, x.ne[1]]) for t, head in zip(flat, heads))
    return q, k, v


def split_heads(g: Step, rows: Tensor, *heads: tuple[int, int]) -> list[Tensor]:
    """rows [n, n_tokens], whose columns hold parts of (head size, heads) one after the other: a
    view of each."""
    parts, offset = [], 0
    for size, n in heads:
        nb = (rows.nb[0], rows.nb[0] * size, rows.nb[1])
        parts.append(g.view(rows, (size, n, rows.ne[1]), nb, offset))
        offset += rows.nb[0] * size * n
    return parts


def attend(
    g: Step,
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    layer: Layer,
    *,
    scale: float,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Store k and v, look at all that is stored: [n_v * n_head, n_tokens].

    q [n_k, n_head, n_tokens], k [n_k, n_head_kv, n_tokens], v [n_v, n_head_kv, n_tokens]; v is None
    if layer.v_in_k.
    """
    k_turn, v_turn = g.cache.turns(layer)
    q, k = spread(g, q, k_turn), spread(g, k, k_turn)
    v = None if v is None else spread(g, v, v_turn)
    g.expand(q)
    keys, values = g.cache.store(g, layer, k, v)
    if values is None:
        assert layer.v_in_k
        values = g.view(keys, (layer.n_v, *keys.ne[1:]), keys.nb, 0)
    mask = g.cache.mask(g, layer)
    q, keys, values = (g.permute(t, (0, 2, 1, 3)) for t in (q, keys, values))
    n_rows = values.ne[0] * q.ne[2]
    if g.flash:
        y = g.flash_attn(
            q, keys, values, mask, sinks, scale=scale, max_bias=layer.max_bias, softcap=softcap
        )
    else:
        y = _spelled_out(g, q, keys, values, mask, sinks, (scale, softcap, layer.max_bias))
    if v is not None:
        y = spread(g, y, v_turn)
    return g.reshape(y, [n_rows, g.n_tokens])


def _spelled_out(
    g: Step,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor,
    sinks: Tensor | None,
    numbers: tuple[float, float, float],
) -> Tensor:
    """Attention as single ops: [n_v, n_head, n_tokens]."""
    scale, softcap, max_bias = numbers
    scores = g.mul_mat(k, q)  # [n_kv, n_tokens, n_head]
    if softcap:
        scores, scale = capped(g, g.scale(scores, scale), softcap), 1.0
    weights = g.soft_max(scores, mask, sinks, scale=scale, max_bias=max_bias)
    if v.kind.n_values > 1:  # blocks cannot be turned on their side
        v = g.cast(v, "f32")
    columns = g.cont(g.transpose(v))  # [n_kv, n_v, n_head_kv]
    return g.cont(g.permute(g.mul_mat(columns, weights), (0, 2, 1, 3)))


def spread(g: Builder, x: Tensor, size: int) -> Tensor:
    """x with each `size` values of its rows turned by a Hadamard matrix; x itself if that is 0."""
    turned: Tensor = g.hadamard(x, size=size) if size else x
    return turned
