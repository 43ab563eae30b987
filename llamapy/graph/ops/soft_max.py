"""soft_max: scale, add a mask, and make each row positive with sum 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.precision import working
from llamapy.graph.softmax import bias, softmax
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class SoftMax(Op, name="soft_max", inplace=True, optional={"mask": 1, "sinks": 2}):
    """x [n_kv, n_q, heads, b3], (mask f32 or f16 [n_kv, >= n_q, m2, m3]), (sinks f32 [heads]) ->
    float32 like x.

    softmax(scale * x + slope * mask) along ne[0]; m2 divides heads and m3 divides b3. slope is 1,
    or with max_bias ALiBi's of the head. A sink is one more score of its head that takes a share of
    the sum and gives no result. A row that is masked whole gives zeros.
    """

    scale: float = 1.0
    max_bias: float = 0.0
    has_mask: bool = False
    has_sinks: bool = False

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        x, mask, sinks = self.spread(src)
        assert x is not None
        if mask is not None:
            fits = (
                mask.ne[0] == x.ne[0] and mask.ne[1] >= x.ne[1] and mask.kind.name in ("f32", "f16")
            )
            self.require(
                fits and x.ne[2] % mask.ne[2] == 0 == x.ne[3] % mask.ne[3],
                "mask does not fit",
                x,
                mask,
            )
        self.require(mask is not None or self.max_bias <= 0, "ALiBi needs a mask", x)
        fits = sinks is None or (sinks.ne[0] == x.ne[2] and sinks.kind.name == "f32")
        self.require(fits, "one sink a head is needed", *src)
        return x.ne, "f32"

    def meaning(self, *arrays: Array) -> Array:
        x, mask, sinks = self.spread(arrays)
        assert x is not None
        scores = working(x) * self.scale
        if mask is not None:
            scores = scores + bias(mask, x.shape, self.max_bias)
        column = None if sinks is None else sinks.reshape(-1, 1, 1)
        return softmax(scores, column).astype(np.float32)
