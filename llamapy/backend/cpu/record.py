"""The node record: 128 words that tell a kernel everything, and how compiled code reads them.

word 0        address of the kernel
word 1        1 if all threads wait for each other after this node
word 2        address of the counter that hands out chunks
word 3, 4     address of shared scratch; of this program's per-thread scratch
word 5        bytes of scratch a thread
words 8-23    parameters (integers, or floats as 64-bit patterns)
words 24...   tensors, 10 words each: data, ne[4], nb[4], type id; the result first, then the
sources (up to 9)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llamapy.graph.tensor import Tensor
from llamapy.native import Macro, compiled, mem

WORDS = 128
BYTES = 8 * WORDS
KERNEL, BARRIER, COUNTER, SHARED, PRIVATE, PRIVATE_BYTES = 0, 1, 2, 3, 4, 5
PARAMS, TENSORS, TENSOR_WORDS = 8, 24, 10
MAX_TENSORS = (WORDS - TENSORS) // TENSOR_WORDS
MAX_PARAMS = TENSORS - PARAMS


def write(
    row: np.ndarray[Any, np.dtype[np.int64]],
    params: Sequence[int | float],
    tensors: Sequence[Tensor | None],
) -> None:
    """Fill the parameters and tensors of one record. AssertionError on our own mistakes only."""
    assert len(params) <= MAX_PARAMS and len(tensors) <= MAX_TENSORS
    for i, value in enumerate(params):
        row[PARAMS + i] = np.float64(value).view(np.int64) if isinstance(value, float) else value
    for i, tensor in enumerate(tensors):
        if tensor is None:
            continue
        assert tensor.data is not None, tensor
        at = TENSORS + i * TENSOR_WORDS
        row[at] = tensor.data
        row[at + 1 : at + 5] = tensor.ne
        row[at + 5 : at + 9] = tensor.nb
        row[at + 9] = tensor.kind.type_id


# ne(node, t, i) and nb(node, t, i): sizes and strides of tensor t (0: the result, 1: the first
# source ...).
# param(node, i), dparam(node, i), fparam(node, i): parameter i as an integer, float64, float32.
ne = Macro("group_field", TENSORS + 1, TENSOR_WORDS)
nb = Macro("group_field", TENSORS + 5, TENSOR_WORDS)
_data = Macro("group_field", TENSORS, TENSOR_WORDS)
param = Macro("word_field", PARAMS)
dparam = Macro("double_field", PARAMS)
fparam = Macro("single_field", PARAMS)


@compiled
def data(node, t):  # type: ignore[no-untyped-def]
    """Address of tensor t; 0 if it is absent."""
    return _data(node, t, 0)


@compiled
def shared(node):  # type: ignore[no-untyped-def]
    return mem.i64(node, SHARED)


@compiled
def private(node, ith):  # type: ignore[no-untyped-def]
    """This thread's own scratch."""
    return mem.i64(node, PRIVATE) + ith * mem.i64(node, PRIVATE_BYTES)


@compiled
def n_rows(node, t):  # type: ignore[no-untyped-def]
    return ne(node, t, 1) * ne(node, t, 2) * ne(node, t, 3)


@compiled
def row_address(node, t, r):  # type: ignore[no-untyped-def]
    """Address of row r of tensor t, rows counted through dimensions 1, 2, 3."""
    i1 = r % ne(node, t, 1)
    rest = r // ne(node, t, 1)
    i2 = rest % ne(node, t, 2)
    i3 = rest // ne(node, t, 2)
    return data(node, t) + i1 * nb(node, t, 1) + i2 * nb(node, t, 2) + i3 * nb(node, t, 3)


@compiled
def like_row_address(node, t, r):  # type: ignore[no-untyped-def]
    """Address of the row of tensor t that is repeated to row r of the result."""
    i1 = r % ne(node, 0, 1)
    rest = r // ne(node, 0, 1)
    i2 = rest % ne(node, 0, 2)
    i3 = rest // ne(node, 0, 2)
    return (
        data(node, t)
        + (i1 % ne(node, t, 1)) * nb(node, t, 1)
        + (i2 % ne(node, t, 2)) * nb(node, t, 2)
        + (i3 % ne(node, t, 3)) * nb(node, t, 3)
    )
