"""Normalisation with weights."""

from __future__ import annotations

from llamapy.core.errors import ModelError
from llamapy.graph import Tensor
from llamapy.nn.params import Params
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def rms_norm(g: Step, x: Tensor, w: Weights, name: str, p: Params) -> Tensor:
    """x / rms(x) * `name.weight` along ne[0]."""
    eps = _given(p.norm_rms_eps, p, "attention.layer_norm_rms_epsilon")
    return g.mul(g.rms_norm(x, eps=eps), w(f"{name}.weight", x.ne[0]))


def layer_norm(g: Step, x: Tensor, w: Weights, name: str, p: Params) -> Tensor:
    """(x - mean) / deviation * `name.weight` (+ `name.bias` if there is one) along ne[0]."""
    eps = _given(p.norm_eps, p, "attention.layer_norm_epsilon")
    y = g.mul(g.norm(x, eps=eps), w(f"{name}.weight", x.ne[0]))
    bias = w.get(f"{name}.bias", x.ne[0])
    return y if bias is None else g.add(y, bias)


def _given(eps: float, p: Params, name: str) -> float:
    if not eps > 0:
        raise ModelError(f"key {p.arch}.{name} is missing or not positive")
    return eps
