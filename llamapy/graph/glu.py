"""Gated linear units: act(gate) * up, where gate and up are two tensors or the halves of each row
of one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from llamapy.graph.op import Array, Op
from llamapy.graph.tensor import Tensor


def shape(op: Op, src: tuple[Tensor, ...]) -> tuple[tuple[int, ...], str]:
    """The shape of one half, float32."""
    if len(src) == 1:
        op.require(src[0].ne[0] % 2 == 0, "rows do not divide into two halves", *src)
        return (src[0].ne[0] // 2, *src[0].ne[1:]), "f32"
    op.require(len(src) == 2 and src[0].ne == src[1].ne, "gate and up differ in shape", *src)
    return src[0].ne, "f32"


def meaning(act: Callable[[Array], Array], arrays: tuple[Array, ...], swapped: bool) -> Array:
    """`swapped`: in a row that holds both, the gate is the second half."""
    if len(arrays) == 2:
        gate, up = arrays
    else:
        halves = np.split(arrays[0], 2, axis=-1)
        gate, up = halves[::-1] if swapped else halves
    return (act(gate) * up).astype(np.float32)
