"""Softmax as attention uses it: masks that repeat over heads, ALiBi slopes, sinks."""

from __future__ import annotations

import numpy as np

from llamapy.graph.op import Array
from llamapy.graph.precision import working


def slopes(n_head: int, max_bias: float) -> Array:
    """float64 [n_head]: what each head multiplies the mask by; 1 without ALiBi (max_bias 0).

    With n the largest power of two <= n_head: heads below n have 2^(-max_bias / n)^(h + 1), the
    others the odd powers of 2^(-max_bias / 2n) (Press et al. 2021; ggml's soft_max).
    """
    if max_bias <= 0:
        return np.ones(n_head)
    n = 1 << (n_head.bit_length() - 1)
    h = np.arange(n_head)
    return np.where(
        h < n, 2.0 ** (-max_bias / n * (h + 1)), 2.0 ** (-max_bias / 2 / n * (2 * (h - n) + 1))
    )


def bias(mask: Array, shape: tuple[int, ...], max_bias: float) -> Array:
    """What is added to scores of this shape [batch, n_head, n_q, n_kv]: the mask
    [m3, m2, >= n_q, n_kv], repeated over batch and heads and multiplied by the slopes."""
    batch, n_head, n_q = shape[:3]
    rows = mask[:, :, :n_q]
    if mask.shape[:2] != (1, 1):
        rows = rows[np.arange(batch) % mask.shape[0]][:, np.arange(n_head) % mask.shape[1]]
    return rows if max_bias <= 0 else np.asarray(rows * slopes(n_head, max_bias)[:, None, None])


def softmax(scores: Array, sinks: Array | None = None) -> Array:
    """Along the last axis, in `working` precision. A row that is all -inf gives zeros.

    sinks (broadcasts with a column of scores): one more score in each row, which takes its share of
    the sum and is then dropped.
    """
    scores = working(scores)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        top = np.maximum(top, sinks)
    top = np.where(np.isneginf(top), scores.dtype.type(0), top)
    out: Array = np.exp(scores - top)
    total = out.sum(axis=-1, keepdims=True, dtype=np.float64)
    if sinks is not None:
        total = total + np.exp(sinks - top)
    out /= np.where(total == 0, 1, total).astype(out.dtype)
    return out
