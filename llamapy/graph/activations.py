"""The activation functions, shared by unary ops and gated units. float32 in, `working` precision
out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from llamapy.graph.op import Array
from llamapy.graph.precision import working

_erf: Any = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: then the result is 0
        return np.asarray(1 / (1 + np.exp(-working(x))))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh form, as ggml's `gelu`."""
    x = working(x)
    y = np.tanh(math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x))
    return np.asarray(0.5 * x * (1 + y))


def gelu_erf(x: Array) -> Array:
    """The exact form."""
    y = np.asarray(_erf(x / math.sqrt(2)), np.float64)
    return np.asarray(0.5 * x * (1 + y))


def gelu_quick(x: Array) -> Array:
    return x * sigmoid(working(x) * 1.702)


def relu(x: Array) -> Array:
    return np.where(x > 0, x, np.float32(0))
