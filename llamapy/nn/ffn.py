"""Feed-forward networks: gated (two matrices in, one out) and plain (one in, one out)."""

from __future__ import annotations

from llamapy.graph import Tensor
from llamapy.nn.linear import linear
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

GATED = {
    "silu": "swiglu",
    "gelu": "geglu",
    "gelu_erf": "geglu_erf",
    "gelu_quick": "geglu_quick",
    "relu": "reglu",
}


def gated_ffn(
    g: Step, x: Tensor, w: Weights, n_ff: int, *, act: str = "silu", suffix: str = ""
) -> Tensor:
    """down(act(gate(x)) * up(x)), with tensors ffn_gate, ffn_up, ffn_down (+ suffix, "_shexp" for
    shared experts)."""
    n_embd = x.ne[0]
    gate = linear(g, x, w, f"ffn_gate{suffix}", n_ff)
    up = linear(g, x, w, f"ffn_up{suffix}", n_ff)
    return linear(g, activate(g, act, gate, up), w, f"ffn_down{suffix}", n_embd)


def fused_gated_ffn(g: Step, x: Tensor, w: Weights, n_ff: int, *, act: str = "silu") -> Tensor:
    """As gated_ffn, where ffn_up holds gate and up, one above the other."""
    both = linear(g, x, w, "ffn_up", 2 * n_ff)
    return linear(g, activate(g, act, both), w, "ffn_down", x.ne[0])


def plain_ffn(g: Step, x: Tensor, w: Weights, n_ff: int, *, act: str = "gelu") -> Tensor:
    """down(act(up(x)))."""
    inner: Tensor = getattr(g, act)(linear(g, x, w, "ffn_up", n_ff))
    return linear(g, inner, w, "ffn_down", x.ne[0])


def activate(g: Step, act: str, *gate_and_up: Tensor) -> Tensor:
    """act(gate) * up; one tensor may hold both."""
    made: Tensor = getattr(g, GATED[act])(*gate_and_up)
    return made
