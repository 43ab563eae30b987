"""What the attention kernels share: which nodes they can compute, masks, ALiBi slopes, the soft
cap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llamapy.backend.cpu import activate, values
from llamapy.backend.cpu import record as rec
from llamapy.graph.ops.flash_attn import FlashAttn
from llamapy.graph.tensor import Tensor
from llamapy.native import compiled, simd
from llamapy.quants import codec

MINUS_INFINITY = 0xFC00  # as a half: what a mask hides a key with
HIDDEN = 0xFC00FC00FC00FC00  # four of them


@dataclass(frozen=True)
class Sources:
    """What a flash_attn node reads. `heads`: how many of its heads share keys, values and mask;
    `params` and `types`: what every kernel for it begins with."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    sinks: Tensor | None
    heads: int
    params: tuple[float | int, ...]
    types: tuple[str, str]

    def tensors(self, node: Tensor) -> tuple[Tensor | None, ...]:
        """The result and the sources, as kernels read them."""
        return node, self.q, self.k, self.v, self.mask, self.sinks


def sources(node: Tensor) -> Sources | None:
    """The sources of a flash_attn node; None if the kernels cannot read them."""
    op = node.op
    if not isinstance(op, FlashAttn):
        return None
    q, k, v, mask, sinks = op.spread(node.src)
    assert q is not None and k is not None and v is not None
    for t in (k, v):
        if not t.contiguous_rows or (t.kind.name not in values.PLAIN and t.kind.unpack is None):
            return None
    if q.kind.name != "f32" or (
        mask is not None and (mask.kind.name != "f16" or not mask.contiguous_rows)
    ):
        return None
    shared = k.ne[2] == v.ne[2] and (mask is None or mask.ne[2] == 1)
    tables = codec.tables_address(k.kind), codec.tables_address(v.kind)
    params = (float(op.scale), float(op.max_bias), float(op.softcap), *tables)
    heads = q.ne[2] // k.ne[2] if shared else 1
    return Sources(q, k, v, mask, sinks, heads, params, (k.kind.name, v.kind.name))


@compiled
def slope(head, n_head, max_bias):
    """What a head multiplies the mask by (formula: graph/softmax.py)."""
    if max_bias <= 0:
        return np.float32(1)
    n = 1
    while n * 2 <= n_head:
        n *= 2
    if head < n:
        return np.float32(2.0 ** (-max_bias / n * (head + 1)))
    return np.float32(2.0 ** (-max_bias / 2 / n * (2 * (head - n) + 1)))


@compiled
def mask_row(node, t, query, head, i3):
    """Address of the mask's row for a query; 0 without a mask."""
    mask = rec.data(node, t)
    if mask == 0:
        return mask
    return (
        mask
        + query * rec.nb(node, t, 1)
        + head % rec.ne(node, t, 2) * rec.nb(node, t, 2)
        + i3 % rec.ne(node, t, 3) * rec.nb(node, t, 3)
    )


@compiled
def capped(scores, cap):
    """cap * tanh(scores / cap) in sixteen lanes; unchanged for cap 0."""
    if cap == 0:
        return scores
    zero = np.float32(0)
    inner = activate.tanh(simd.splat_f32x16(np.float32(1) / cap) * scores, zero, zero)
    return simd.splat_f32x16(cap) * inner


@compiled
def plane(node, t, head, i3):
    """Address of the keys' or values' matrix that serves a head of the queries (tensor 1)."""
    own = head * rec.ne(node, t, 2) // rec.ne(node, 1, 2)
    return (
        rec.data(node, t)
        + own * rec.nb(node, t, 2)
        + i3 * rec.ne(node, t, 3) // rec.ne(node, 1, 3) * rec.nb(node, t, 3)
    )
