"""Rotary positions: what a rotation is, and how queries and keys get it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log
from typing import TYPE_CHECKING

from llamapy.graph import Builder, Tensor

if TYPE_CHECKING:
    from llamapy.nn.params import Params
    from llamapy.nn.step import Step
    from llamapy.nn.weights import Weights


@dataclass(frozen=True)
class Rope:
    """The numbers of a rotation, as the op takes them, and the tensor of frequency factors if there
    is one."""

    n_dims: int
    mode: str
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    factors: Tensor | None = None

    def turn(self, g: Builder, x: Tensor, positions: Tensor) -> Tensor:
        """x [head, n_head, n_tokens] turned by its tokens' positions."""
        turned: Tensor = g.rope(
            x,
            positions,
            self.factors,
            n_dims=self.n_dims,
            mode=self.mode,
            n_ctx_orig=self.n_ctx_orig,
            freq_base=self.freq_base,
            freq_scale=self.freq_scale,
            ext_factor=self.ext_factor,
            attn_factor=self.attn_factor,
            beta_fast=self.beta_fast,
            beta_slow=self.beta_slow,
        )
        return turned

    def by_delta(self) -> Rope:
        """The rotation that moves a turned key to another position: the same angles, magnitude
        1."""
        factor = 1.0 / (1.0 + 0.1 * log(1.0 / self.freq_scale)) if self.ext_factor else 1.0
        return replace(self, attn_factor=factor)


def with_factors(g: Step, w: Weights, p: Params, rope: Rope) -> Rope:
    """`rope` with the model's frequency factors: `rope_freqs` (Llama 3), or with longrope those for
    contexts longer or not longer than the original one."""
    half = p.n_rot // 2
    if p.rope_scaling != "longrope" and not w.has("rope_factors_long.weight"):
        return replace(rope, factors=w.get("rope_freqs.weight", half))
    long, short = (w.get(f"rope_factors_{n}.weight", half) for n in ("long", "short"))
    return replace(rope, factors=long if g.n_ctx > p.rope_n_ctx_orig else short)


def rotate(g: Step, rope: Rope | None, *tensors: Tensor) -> list[Tensor]:
    """Each of the tensors [head, n_head, n_tokens] turned by the batch's positions; None leaves
    them."""
    return [t if rope is None else rope.turn(g, t, g.positions) for t in tensors]
