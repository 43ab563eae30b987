"""Tensors in memory as numpy arrays, and back: strided views, every type. Knows no op.

An array has the shape ne[::-1]: float32 for float and quantized types, integers as they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.core.errors import QuantError
from llamapy.graph.tensor import Tensor
from llamapy.quants import api
from llamapy.quants.codec import Codec

Array = np.ndarray[Any, Any]


def blocks(tensor: Tensor) -> Array:
    """The tensor's memory itself, not a copy: blocks of its type, shape [ne3, ne2, ne1, blocks a
    row]."""
    assert tensor.data is not None, tensor
    n = tensor.ne[0] // tensor.kind.n_values
    offset = tensor.data - tensor.buffer.address
    owner = tensor.buffer.owner
    return np.ndarray((*tensor.ne[:0:-1], n), tensor.kind.block, owner, offset, tensor.nb[::-1])


def decode(kind: type[Codec], raw: Array) -> Array:
    """Blocks [..., n] of a type as numbers [..., n * n_values]. f32 and integers are not copied."""
    if kind.name == "f32" or raw.dtype.kind == "i":
        return raw
    if kind.n_values == 1 and raw.dtype.kind == "f":
        return raw.astype(np.float32)
    numbers = kind.dequantize(np.ascontiguousarray(raw).reshape(-1))
    return numbers.reshape(*raw.shape[:-1], raw.shape[-1] * kind.n_values)


def encode(kind: type[Codec], numbers: Array) -> Array:
    """Numbers [..., n] as blocks of a type, rounded to nearest. QuantError for types without a
    way."""
    if kind.name == "bf16":
        return _bf16(numbers)
    if kind.n_values == 1:
        return numbers.astype(kind.block, copy=False)
    if not can_encode(kind):
        raise QuantError(f"the reference backend cannot write {kind.name}")
    bytes_ = api.quantize(numbers, kind, allow_nonfinite=True)
    return bytes_.view(kind.block).reshape(*numbers.shape[:-1], -1)


def can_encode(kind: type[Codec]) -> bool:
    """Whether numbers can be written as this type without knowing what matters in them."""
    return kind.n_values == 1 or (kind.encode is not None and kind.name not in api.NEED_IMPORTANCE)


class Rows:
    """A table that is decoded where it is indexed: `rows[i3, i2, i1]` are the numbers of those
    rows."""

    def __init__(self, tensor: Tensor) -> None:
        self._kind, self._raw = tensor.kind, blocks(tensor)
        self.shape = tensor.ne[::-1]

    def __getitem__(self, index: Any) -> Array:
        return decode(self._kind, self._raw[index])


def _bf16(numbers: Array) -> Array:
    """The upper halves of float32, to nearest, ties to even; a NaN stays one (made quiet)."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(numbers), (bits >> 16) | 64, rounded).astype(np.uint16)
