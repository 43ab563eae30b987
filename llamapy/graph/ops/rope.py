"""rope: rotary position embedding, with frequency factors and YaRN."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log, pi

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class Rope(Op, name="rope", inplace=True, optional={"factors": 2}):
    """x [head, n_head, n_tokens, b3], pos i32 [n_tokens], (factors f32 [>= n_dims / 2]) -> float32
    like x.

    Pair i of n_dims / 2 is turned by the angle pos * freq_base^(-2i / n_dims) / factors[i]; what
    lies behind n_dims is copied. mode "norm" pairs neighbours (2i, 2i + 1), "neox" halves (i, i +
    n_dims / 2).

    Angles are multiplied by freq_scale (1 / factor: linear scaling). With ext_factor (YaRN) pairs
    that turn fast keep their angle: the share of the unscaled angle is ext_factor * ramp(i), which
    falls from 1 to 0 between the pairs that turn beta_fast and beta_slow times within n_ctx_orig;
    cosines and sines are then multiplied by 1 + 0.1 ln(1 / freq_scale). attn_factor multiplies them
    in any case.
    """

    n_dims: int
    mode: str = "norm"
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    has_factors: bool = False

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        x, pos, factors = self.spread(src)
        assert x is not None and pos is not None
        self.require(self.mode in ("norm", "neox"), f"unknown mode {self.mode!r}", x)
        self.require(
            0 < self.n_dims <= x.ne[0] and self.n_dims % 2 == 0, f"cannot turn {self.n_dims}", x
        )
        self.require(
            pos.ne == (x.ne[2], 1, 1, 1) and pos.kind.name == "i32", "a position a token", x, pos
        )
        enough = factors is None or (
            factors.ne[0] >= self.n_dims // 2 and factors.kind.name == "f32"
        )
        self.require(enough, "too few frequency factors", *src)
        return x.ne, "f32"

    def meaning(self, *arrays: Array) -> Array:
        x, pos, factors = self.spread(arrays)
        assert x is not None and pos is not None
        cos, sin = (t[:, None, :] for t in self.turns(pos.reshape(-1), factors))
        out = x.astype(np.float32)
        n = self.n_dims
        first, second = (
            (slice(0, n, 2), slice(1, n, 2))
            if self.mode == "norm"
            else (slice(n // 2), slice(n // 2, n))
        )
        out[..., first] = x[..., first] * cos - x[..., second] * sin
        out[..., second] = x[..., first] * sin + x[..., second] * cos
        return out

    def turns(self, pos: Array, factors: Array | None) -> tuple[Array, Array]:
        """Cosines and sines, times the magnitude: float64 [n_tokens, n_dims / 2]."""
        i = np.arange(self.n_dims // 2)
        angle = pos.astype(np.float64)[:, None] * self.freq_base ** (-2.0 * i / self.n_dims)
        if factors is not None:
            angle = angle / factors.reshape(-1)[: len(i)].astype(np.float64)
        magnitude, share = self.attn_factor, np.zeros(len(i))
        if self.ext_factor:
            share = self.ramp(i) * self.ext_factor
            magnitude *= 1.0 + 0.1 * log(1.0 / self.freq_scale)
        angle = angle * (self.freq_scale * (1.0 - share) + share)
        return np.cos(angle) * magnitude, np.sin(angle) * magnitude

    def ramp(self, i: Array) -> Array:
        """1 for pairs that turn fast, 0 for slow ones, linear between the two correction
        dimensions."""
        low, high = self.correction_dims()
        return 1.0 - np.clip((i - low) / max(0.001, high - low), 0.0, 1.0)

    def correction_dims(self) -> tuple[float, float]:
        """Pair numbers that turn beta_fast and beta_slow times within n_ctx_orig, rounded outwards
        and limited."""

        def pair(n_turns: float) -> float:
            return (
                self.n_dims * log(self.n_ctx_orig / (n_turns * 2 * pi)) / (2 * log(self.freq_base))
            )

        low, high = floor(pair(self.beta_fast)), ceil(pair(self.beta_slow))
        return max(0, low), min(self.n_dims - 1, high)
