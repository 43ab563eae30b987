"""Mixture of experts: a router chooses a few of many feed-forward networks for each token."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from llamapy.graph import Tensor
from llamapy.nn.ffn import activate, gated_ffn
from llamapy.nn.linear import linear
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

LEAST_SUM = (
    6.103515625e-5  # the smallest normal half: what normalised weights are divided by at least
)


GATING = {"softmax": "soft_max", "sigmoid": "sigmoid"}  # the op that makes scores of logits


@dataclass(frozen=True)
class Routing:
    """How experts are chosen and weighed.

    gating       "softmax", "sigmoid", or "softmax_weight" (softmax over the chosen only)
    normalize    whether the chosen weights are made to sum to 1
    scale        multiplies the weights
    n_group      groups of experts, of which n_group_used with the highest sum of their group_best
                 best experts stay eligible
    """

    n_expert: int
    n_used: int
    gating: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    n_group: int = 1
    n_group_used: int = 1
    group_best: int = 2


def moe(
    g: Step, x: Tensor, w: Weights, n_ff: int, routing: Routing, *, act: str = "silu"
) -> Tensor:
    """The weighted sum of the chosen experts of x [n_embd, n_tokens].

    Tensors: ffn_gate_inp (router), exp_probs_b.bias (added for the choice only, optional),
    ffn_gate_exps, ffn_up_exps, ffn_down_exps [n_in, n_out, n_expert].
    """
    n_embd, n_tokens = x.ne[:2]
    chosen, weights = route(g, x, w, routing)
    one = g.reshape(x, [n_embd, 1, n_tokens])
    gate = _experts(g, one, w, "ffn_gate_exps", n_ff, chosen, routing)
    up = _experts(g, one, w, "ffn_up_exps", n_ff, chosen, routing)
    inner = activate(g, act, gate, up)
    each = g.mul(_experts(g, inner, w, "ffn_down_exps", n_embd, chosen, routing), weights)
    parts = [
        g.view(each, (n_embd, n_tokens), (each.nb[0], each.nb[2]), i * each.nb[1])
        for i in range(routing.n_used)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = g.add(total, part)
    return g.cont(total) if len(parts) == 1 else total


def shared_ffn(g: Step, x: Tensor, w: Weights, n_ff: int, *, act: str = "silu") -> Tensor:
    """The experts that every token takes, behind a sigmoid gate if `ffn_gate_inp_shexp` is
    there."""
    y = gated_ffn(g, x, w, n_ff, act=act, suffix="_shexp")
    if not w.has("ffn_gate_inp_shexp.weight"):
        return y
    return g.mul(y, g.sigmoid(linear(g, x, w, "ffn_gate_inp_shexp", 1)))


def route(g: Step, x: Tensor, w: Weights, r: Routing) -> tuple[Tensor, Tensor]:
    """Numbers of the chosen experts i32 [n_used, n_tokens], their weights f32 [1, n_used,
    n_tokens]."""
    n_tokens = x.ne[1]
    logits = linear(g, x, w, "ffn_gate_inp", r.n_expert)
    scores = getattr(g, GATING[r.gating])(logits) if r.gating in GATING else logits
    bias = w.get("exp_probs_b.bias", r.n_expert)
    eligible = scores if bias is None else g.add(scores, bias)
    if r.n_group > 1:
        eligible = _best_groups(g, eligible, r)
    chosen = g.top_k(eligible, r.n_used)
    weights = g.get_rows(g.reshape(scores, [1, r.n_expert, n_tokens]), chosen)
    flat = g.reshape(weights, [r.n_used, n_tokens])
    if r.gating == "softmax_weight":
        flat = g.soft_max(flat)
    if r.normalize:
        flat = g.div(flat, g.clamp(g.sum_rows(flat), LEAST_SUM, inf))
    if r.scale != 1.0:
        flat = g.scale(flat, r.scale)
    return chosen, g.reshape(flat, [1, r.n_used, n_tokens])


def _experts(
    g: Step, x: Tensor, w: Weights, name: str, n_out: int, chosen: Tensor, r: Routing
) -> Tensor:
    """x [n_in, 1 or n_used, n_tokens] through the chosen experts' matrices: [n_out, n_used,
    n_tokens]."""
    y: Tensor = g.mul_mat_id(w(f"{name}.weight", x.ne[0], n_out, r.n_expert), x, chosen)
    scale, bias = w.get(f"{name}.scale", r.n_expert), w.get(f"{name}.bias", n_out, r.n_expert)
    if scale is not None:
        ids = g.reshape(chosen, [chosen.n_elements])
        of_chosen = g.get_rows(g.reshape(scale, [1, r.n_expert]), ids)
        y = g.mul(y, g.reshape(of_chosen, [1, *chosen.ne[:2]]))
    return y if bias is None else g.add_id(y, bias, chosen)


def _best_groups(g: Step, scores: Tensor, r: Routing) -> Tensor:
    """scores [n_expert, n_tokens] with -inf outside the n_group_used groups whose best experts sum
    highest."""
    size, n_tokens = r.n_expert // r.n_group, scores.ne[1]
    groups = g.reshape(scores, [size, r.n_group, n_tokens])
    few = g.top_k(groups, r.group_best)  # [group_best, n_group, n_tokens]
    best = g.get_rows(g.reshape(groups, [1, size, r.n_group, n_tokens]), few)
    sums = g.sum_rows(g.reshape(best, [r.group_best, r.n_group, n_tokens]))
    kept = g.top_k(g.reshape(sums, [r.n_group, n_tokens]), r.n_group_used)
    nothing = g.scale(groups, 0.0, -inf)
    return g.reshape(g.set_rows(nothing, g.get_rows(groups, kept), kept), [r.n_expert, n_tokens])
