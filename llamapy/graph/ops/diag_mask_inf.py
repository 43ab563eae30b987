"""diag_mask_inf: hide what lies after the diagonal (causal attention without a mask tensor)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.graph.op import Array, Op


@dataclass(frozen=True)
class DiagMaskInf(Op, name="diag_mask_inf", inplace=True):
    """x [n, m, ...] -> float32 like x, with -inf where i0 > n_past + i1."""

    n_past: int = 0

    def meaning(self, x: Array) -> Array:  # type: ignore[override]
        hidden = np.arange(x.shape[-1]) > self.n_past + np.arange(x.shape[-2])[:, None]
        return np.where(hidden, np.float32(-np.inf), x)
