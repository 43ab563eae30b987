"""Functions of sixteen numbers at once: f(x, p, q), where p and q are the op's parameters (most
ignore them)."""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, simd


@compiled
def sigmoid(x, p, q):
    one = simd.splat_f32x16(np.float32(1))
    return one / (one + simd.exp_f32x16(simd.zeros_f32x16() - x))


@compiled
def silu(x, p, q):
    one = simd.splat_f32x16(np.float32(1))
    return x / (one + simd.exp_f32x16(simd.zeros_f32x16() - x))


@compiled
def gelu(x, p, q):
    """0.5 x (1 + tanh(y)) = x * sigmoid(2 y), y = sqrt(2/pi) (x + 0.044715 x^3)."""
    c = simd.splat_f32x16(np.float32(-2 * 0.7978845608028654))
    y = (
        c
        * x
        * simd.fma_f32x16(
            simd.splat_f32x16(np.float32(0.044715)), x * x, simd.splat_f32x16(np.float32(1))
        )
    )
    return x / (simd.splat_f32x16(np.float32(1)) + simd.exp_f32x16(y))


@compiled
def gelu_quick(x, p, q):
    y = simd.splat_f32x16(np.float32(-1.702)) * x
    return x / (simd.splat_f32x16(np.float32(1)) + simd.exp_f32x16(y))


@compiled
def erf(x):
    """Abramowitz and Stegun 7.1.26: within 1.5e-7."""
    one = simd.splat_f32x16(np.float32(1))
    a = simd.abs_f32x16(x)
    t = one / simd.fma_f32x16(simd.splat_f32x16(np.float32(0.3275911)), a, one)
    y = simd.splat_f32x16(np.float32(1.061405429))
    y = simd.fma_f32x16(y, t, simd.splat_f32x16(np.float32(-1.453152027)))
    y = simd.fma_f32x16(y, t, simd.splat_f32x16(np.float32(1.421413741)))
    y = simd.fma_f32x16(y, t, simd.splat_f32x16(np.float32(-0.284496736)))
    y = simd.fma_f32x16(y, t, simd.splat_f32x16(np.float32(0.254829592)))
    y = one - y * t * simd.exp_f32x16(simd.zeros_f32x16() - a * a)
    return simd.with_sign_f32x16(y, x)


@compiled
def gelu_erf(x, p, q):
    half = simd.splat_f32x16(np.float32(0.5)) * x
    return half + half * erf(simd.splat_f32x16(np.float32(0.7071067811865476)) * x)


@compiled
def relu(x, p, q):
    return simd.positive_f32x16(x)


@compiled
def relu_sqr(x, p, q):
    y = simd.positive_f32x16(x)
    return y * y


@compiled
def tanh(x, p, q):
    """(1 - e) / (1 + e) with e = exp(-2 |x|); for small |x| the odd series."""
    one = simd.splat_f32x16(np.float32(1))
    a = simd.abs_f32x16(x)
    e = simd.exp_f32x16(simd.splat_f32x16(np.float32(-2)) * a)
    return simd.with_sign_f32x16((one - e) / (one + e), x)


@compiled
def neg(x, p, q):
    return simd.zeros_f32x16() - x


@compiled
def exp(x, p, q):
    return simd.exp_f32x16(x)


@compiled
def sqr(x, p, q):
    return x * x


@compiled
def sqrt(x, p, q):
    return simd.sqrt_f32x16(x)


@compiled
def scale(x, p, q):
    return simd.splat_f32x16(p) * x + simd.splat_f32x16(q)


@compiled
def clamp(x, p, q):
    return simd.min_f32x16(simd.max_f32x16(x, simd.splat_f32x16(p)), simd.splat_f32x16(q))
