"""flash_attn: attention in one op; no backend need ever hold the matrix of scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.precision import rows_dot_rows, working
from llamapy.graph.softmax import slopes, softmax
from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class FlashAttn(Op, name="flash_attn", optional={"mask": 3, "sinks": 4}):
    """q f32 [d, n_q, heads, b3], k [d, n_kv, heads_k, c3], v [dv, n_kv, heads_v, c3], (mask f16 or
    f32 [n_kv, >= n_q, m2, m3]), (sinks f32 [heads]) -> f32 [dv, heads, n_q, b3] (as
    ggml_flash_attn_ext: heads before queries, so that it reshapes to [dv * heads, n_q]).

    softmax(cap(scale * q . k) + slope * mask) . v, with cap(s) = softcap * tanh(s / softcap) if
    softcap is not 0. k and v may be of any type and strided; a head of theirs serves heads /
    heads_k neighbours. Slopes, sinks and rows that are masked whole are as in soft_max.
    """

    scale: float = 1.0
    max_bias: float = 0.0
    softcap: float = 0.0
    has_mask: bool = False
    has_sinks: bool = False

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        q, k, v, mask, sinks = self.spread(src)
        assert q is not None and k is not None and v is not None
        fits = q.ne[0] == k.ne[0] and k.ne[1] == v.ne[1]
        fits = fits and all(q.ne[i] % s.ne[i] == 0 for s in (k, v) for i in (2, 3))
        self.require(fits, "keys and values do not fit", q, k, v)
        if mask is not None:
            fits = (
                mask.ne[0] == k.ne[1] and mask.ne[1] >= q.ne[1] and mask.kind.name in ("f16", "f32")
            )
            self.require(
                fits and q.ne[2] % mask.ne[2] == 0 == q.ne[3] % mask.ne[3],
                "mask does not fit",
                q,
                mask,
            )
        self.require(mask is not None or self.max_bias <= 0, "ALiBi needs a mask", q)
        fits = sinks is None or (sinks.ne[0] == q.ne[2] and sinks.kind.name == "f32")
        self.require(fits, "one sink a head is needed", *src)
        return (v.ne[0], q.ne[2], q.ne[1], q.ne[3]), "f32"

    def meaning(self, *arrays: Array) -> Array:
        q, k, v, mask, sinks = self.spread(arrays)
        assert q is not None and k is not None and v is not None
        b3, heads, n_q, _ = q.shape
        slope = slopes(heads, self.max_bias)
        out = np.empty((b3, n_q, heads, v.shape[-1]), np.float32)
        for i3, h in np.ndindex(b3, heads):
            scores = working(rows_dot_rows(q[i3, h], _serving(k, i3, h, q))) * self.scale
            if self.softcap:
                scores = self.softcap * np.tanh(scores / self.softcap)
            if mask is not None:
                rows = mask[i3 % mask.shape[0], h % mask.shape[1], :n_q]
                scores = scores + (rows if self.max_bias <= 0 else rows * np.float32(slope[h]))
            weights = softmax(scores, None if sinks is None else sinks.reshape(-1)[h])
            out[i3, :, h] = rows_dot_rows(weights.astype(np.float32), _serving(v, i3, h, q).T)
        return out


def _serving(kv: Array, i3: int, h: int, q: Array) -> Array:
    """The matrix of keys or values that serves this head."""
    return np.asarray(kv[i3 * kv.shape[0] // q.shape[0], h * kv.shape[1] // q.shape[1]])
