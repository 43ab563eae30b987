"""What the forms share: scales and sums of the activations for the groups of a weight type, and
adding a group."""

from __future__ import annotations

from llamapy.backend.cpu import activations as act
from llamapy.backend.cpu import values
from llamapy.native import compiled, mem, simd

ROWS = 16


@compiled
def group_scales(w, x, k, size):
    return act.scales_32(x, k, size) if values.group(w) == 32 else act.scales_16(x, k, size)


@compiled
def group_sums(w, x, k, size):
    return act.sums_32(x, k, size) if values.group(w) == 32 else act.sums_16(x, k, size)


@compiled
def add_group(c, total, s, m, d, t, g):
    """c + total * scale * (scale of x) + minimum * (sum of x), all in sixteen lanes."""
    c = simd.fma_f32x16(simd.to_f32x16(total), s * simd.splat_f32x16(mem.f32(d, g)), c)
    return simd.fma_f32x16(m, simd.splat_f32x16(mem.f32(t, g)), c)
