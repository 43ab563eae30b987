"""Blocks against what they are in numpy, in the variants that the tiny models do not have."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llamapy.graph import Tensor
from llamapy.nn.attention import attend, attention
from llamapy.nn.cache import Layer
from llamapy.nn.ffn import fused_gated_ffn, gated_ffn, plain_ffn
from llamapy.nn.head import head
from llamapy.nn.linear import linear
from llamapy.nn.moe import Routing, moe, shared_ffn
from llamapy.nn.norm import layer_norm, rms_norm
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights
from tests.archs.naive import gelu_tanh, silu, softmax
from tests.nn.blocks import Array, close, params, run

X = np.random.default_rng(0).standard_normal((5, 12)).astype(np.float32)
N_EXPERT, N_FF = 8, 16


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


# -- experts


def chosen_experts(scores: Array, r: Routing, bias: Array) -> Array:
    """The experts of one token: by score plus bias, of the best groups only."""
    eligible = scores + bias
    if r.n_group > 1:
        groups = eligible.reshape(r.n_group, -1)
        best_two = np.sort(groups, -1)[:, -2:].sum(-1)
        kept = np.argsort(-best_two)[: r.n_group_used]
        inside = np.full_like(groups, -np.inf)
        inside[kept] = groups[kept]
        eligible = inside.reshape(-1)
    return np.argsort(-eligible)[: r.n_used]


def naive_moe(w: dict[str, Array], r: Routing) -> Array:
    out = np.zeros((len(X), 12))
    for t, x in enumerate(X.astype(np.float64)):
        logits = w["ffn_gate_inp.weight"] @ x
        scores = {"softmax": softmax, "sigmoid": sigmoid, "softmax_weight": lambda v: v}[r.gating](
            logits
        )
        experts = chosen_experts(scores, r, w.get("exp_probs_b.bias", np.zeros(N_EXPERT)))
        weights = scores[experts]
        if r.gating == "softmax_weight":
            weights = softmax(weights)
        if r.normalize:
            weights = weights / weights.sum()
        for e, weight in zip(experts, weights * r.scale):

            def through(name: str, v: Array, e: int = e) -> Array:
                y = w[f"{name}.weight"][e] @ v * w.get(f"{name}.scale", np.ones(N_EXPERT))[e]
                return y + w.get(f"{name}.bias", np.zeros((N_EXPERT, 1)))[e]

            inner = silu(through("ffn_gate_exps", x)) * through("ffn_up_exps", x)
            out[t] += weight * through("ffn_down_exps", inner)
    return out


@pytest.mark.parametrize("extras", ["", "exp_probs_b.bias", "exps.bias", "exps.scale"])
@pytest.mark.parametrize(
    "routing",
    [
        Routing(N_EXPERT, 2),
        Routing(N_EXPERT, 1, normalize=True),
        Routing(N_EXPERT, 3, gating="sigmoid", normalize=True, scale=2.5),
        Routing(N_EXPERT, 2, gating="softmax_weight"),
        Routing(N_EXPERT, 3, gating="sigmoid", normalize=True, n_group=4, n_group_used=2),
    ],
    ids=lambda r: f"{r.gating}{r.n_used}{'g' if r.n_group > 1 else ''}",
)
def test_moe(routing: Routing, extras: str) -> None:
    def block(g: Step, x: Tensor, w: Weights) -> Tensor:
        return moe(g, x, w, N_FF, routing)

    got, w = run(block, X, optional=lambda name: bool(extras) and name.endswith(extras))
    assert (len(w) > 4) is bool(extras)
    assert close(got, naive_moe(w, routing))


@pytest.mark.parametrize("gate", [True, False])
def test_shared_experts(gate: bool) -> None:
    got, w = run(
        lambda g, x, w: shared_ffn(g, x, w, N_FF),
        X,
        optional=lambda name: gate and name.startswith("ffn_gate_inp_shexp.weight"),
    )
    x = X.astype(np.float64)
    inner = silu(x @ w["ffn_gate_shexp.weight"].T) * (x @ w["ffn_up_shexp.weight"].T)
    want = inner @ w["ffn_down_shexp.weight"].T
    if gate:
        want = want * sigmoid(x @ w["ffn_gate_inp_shexp.weight"].T)
    assert close(got, want)


# -- feed-forward networks, norms, head


def test_plain_ffn() -> None:
    got, w = run(
        lambda g, x, w: plain_ffn(g, x, w, N_FF), X, optional=lambda name: name.endswith(".bias")
    )
    inner = gelu_tanh(X @ w["ffn_up.weight"].T + w["ffn_up.bias"])
    assert close(got, inner @ w["ffn_down.weight"].T + w["ffn_down.bias"])


def test_fused_ffn_is_the_same_as_two() -> None:
    got, w = run(lambda g, x, w: fused_gated_ffn(g, x, w, N_FF), X)
    gate, up = np.split(X @ w["ffn_up.weight"].T, 2, axis=1)
    assert close(got, (silu(gate) * up) @ w["ffn_down.weight"].T)
    got, w = run(lambda g, x, w: gated_ffn(g, x, w, N_FF, act="relu"), X)
    inner = np.maximum(X @ w["ffn_gate.weight"].T, 0) * (X @ w["ffn_up.weight"].T)
    assert close(got, inner @ w["ffn_down.weight"].T)


def test_norms_and_scale() -> None:
    p = params()
    got, w = run(lambda g, x, w: layer_norm(g, x, w, "n", p), X, optional=lambda name: True)
    x = X.astype(np.float64)
    want = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    assert close(got, want * w["n.weight"] + w["n.bias"])
    got, w = run(lambda g, x, w: linear(g, x, w, "l", 7), X, optional=lambda n: n == "l.scale")
    assert close(got, X @ w["l.weight"].T * w["l.scale"])


def test_head() -> None:
    p = params()
    got, w = run(lambda g, x, w: head(g, x, w, p, scale=0.5, softcap=3.0), X)
    assert list(w) == ["token_embd.weight"]
    assert close(got, 3 * np.tanh(X @ w["token_embd.weight"].T * 0.5 / 3))


# -- attention


def naive_attention(q: Array, k: Array, v: Array, mask: Array, **how: Any) -> Array:
    """q [n, heads, d], k and v [n, heads_kv, d]; mask [n, n] in full: [n, heads * d]."""
    groups = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, groups, 1), np.repeat(v, groups, 1)
    out = np.zeros((len(q), q.shape[1], v.shape[2]))
    for h in range(q.shape[1]):
        scores = q[:, h] @ k[:, h].T * how["scale"]
        if cap := how.get("softcap", 0.0):
            scores = cap * np.tanh(scores / cap)
        scores = scores + how.get("slopes", np.ones(9))[h] * mask
        if "sinks" in how:
            scores = np.concatenate([scores, np.full((len(q), 1), how["sinks"][h])], 1)
        out[:, h] = softmax(scores)[:, : len(k)] @ v[:, h]
    return out.reshape(len(q), -1)


CAUSAL = np.triu(np.full((5, 5), -np.inf), 1)


@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("how", ["plain", "fused", "softcap", "alibi", "norm_all", "norm_head"])
def test_attention(how: str, flash: bool) -> None:
    p = params()
    options: dict[str, Any] = {
        "fused": {"fused": True},
        "softcap": {"softcap": 1.5, "scale": 0.3},
        "alibi": {"max_bias": 8.0},
        "norm_all": {"qk_norm": "all"},
        "norm_head": {"qk_norm": "head"},
    }.get(how, {})
    distance = np.abs(np.subtract.outer(np.arange(5), np.arange(5)))
    mask = CAUSAL - distance if how == "alibi" else CAUSAL
    got, w = run(
        lambda g, x, w: attention(g, x, w, p, **options),
        X,
        flash=flash,
        inputs={"mask.alibi": mask.astype(np.float16)},
    )
    if how == "fused":
        q, k, v = np.split(X @ w["attn_qkv.weight"].T, [12, 16], axis=1)
    else:
        q, k, v = (X @ w[f"attn_{n}.weight"].T for n in "qkv")

    def rms(x: Array, name: str) -> Array:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]

    if how == "norm_all":
        q, k = rms(q, "attn_q_norm"), rms(k, "attn_k_norm")
    q, k, v = q.reshape(5, 3, 4), k.reshape(5, 1, 4), v.reshape(5, 1, 4)
    if how == "norm_head":
        q, k = rms(q, "attn_q_norm"), rms(k, "attn_k_norm")
    # ALiBi's slopes for 3 heads: two of the series for 2 heads, then one of that for 4
    slopes = {"slopes": np.array([2**-4.0, 2**-8.0, 2**-2.0])} if how == "alibi" else {}
    numbers = {"scale": options.get("scale", 0.5), "softcap": options.get("softcap", 0.0)}
    want = naive_attention(q, k, v, mask, **numbers, **slopes) @ w["attn_output.weight"].T
    assert close(got, want)


@pytest.mark.parametrize("flash", [True, False])
def test_sinks_and_values_inside_keys(flash: bool) -> None:
    """Attention sinks; and V that is the front of K, as in MLA."""
    layer = Layer(index=0, n_head_kv=1, n_k=4, n_v=3, v_in_k=True)

    def block(g: Step, x: Tensor, w: Weights) -> Tensor:
        q, k = linear(g, x, w, "q", 12), linear(g, x, w, "k", 4)
        q, k = g.reshape(q, [4, 3, 5]), g.reshape(k, [4, 1, 5])
        return attend(g, q, k, None, layer, scale=0.5, sinks=w("sinks", 3))

    got, w = run(block, X, flash=flash)
    q, k = (X @ w["q.weight"].T).reshape(5, 3, 4), (X @ w["k.weight"].T).reshape(5, 1, 4)
    assert close(got, naive_attention(q, k, k[..., :3], CAUSAL, scale=0.5, sinks=w["sinks"]))


def test_missing_eps() -> None:
    from llamapy.core.errors import ModelError

    with pytest.raises(ModelError, match="toy.attention.layer_norm_rms_epsilon is missing"):
        run(lambda g, x, w: rms_norm(g, x, w, "n", params(norm_rms_eps=0.0)), X)
