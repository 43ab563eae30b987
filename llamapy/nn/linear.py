"""The matrix product with a weight, its optional bias and its optional scale."""

from __future__ import annotations

from llamapy.graph import Tensor
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights


def linear(g: Step, x: Tensor, w: Weights, name: str, n_out: int) -> Tensor:
    """x [n_in, ...] times `name.weight` [n_in, n_out], plus `name.bias` [n_out] if there is one:
    [n_out, ...].

    `name.scale` [1] multiplies the product (NVFP4 files keep a scale outside their blocks).
    """
    return finish(g, g.mul_mat(w(f"{name}.weight", x.ne[0], n_out), x), w, name, n_out)


def finish(g: Step, y: Tensor, w: Weights, name: str, n_out: int) -> Tensor:
    """What comes after the product `y` of `name.weight`: scale and bias."""
    scale, bias = w.get(f"{name}.scale", 1), w.get(f"{name}.bias", n_out)
    if scale is not None:
        y = g.mul(y, scale)
    return y if bias is None else g.add(y, bias)
