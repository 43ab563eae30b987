"""The activation functions, shared by unary ops and gated units. float in, float64 out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from llamapy.graph.op import Array

_erf: Any = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) may be infinite: then the result is 0
        return 1.0 / (1.0 + np.exp(-x.astype(np.float64)))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def gelu(x: Array) -> Array:
    """The tanh form, as ggml's `gelu`."""
    x = x.astype(np.float64)
    y = np.tanh(math.sqrt(2.0 / math.pi) * x * (1.0 + 0.044715 * x * x))
    return np.asarray(0.5 * x * (1.0 + y))


def gelu_erf(x: Array) -> Array:
    """The exact form."""
    x = x.astype(np.float64)
    return np.asarray(0.5 * x * (1.0 + np.asarray(_erf(x / math.sqrt(2.0)), np.float64)))


def gelu_quick(x: Array) -> Array:
    x = x.astype(np.float64)
    return x * sigmoid(1.702 * x)


def relu(x: Array) -> Array:
    return np.where(x > 0, x, 0.0)
