"""Searches for the scale (and minimum) that fits a group of weights best, eight groups at a time.

llama.cpp tries a fixed list of scales and keeps the one with the least weighted error. Its bytes
depend on the order of every sum, so sums here run in that order too: lane k of each vector is
group k, and the groups never mix.

Groups lie transposed, as `_groups.columns` puts them: value i of lane k is float32 number 8 i + k.
Levels are whole float32 numbers.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem

# Scale and minimum: x = scale * level + minimum, levels 0 to n_max, minimum <= 0.


@compiled
def _range_and_sums(x, w, n):
    """Least and largest value, sum of weights, weighted sum of values."""
    low = high = lanes.load(x, 0)
    sum_w = lanes.load(w, 0)
    sum_x = sum_w * low
    for i in range(1, n):
        value, weight = lanes.load(x, 8 * i), lanes.load(w, 8 * i)
        low = lanes.select(value < low, value, low)
        high = lanes.select(value > high, value, high)
        sum_w = sum_w + weight
        sum_x = sum_x + weight * value
    return low, high, sum_w, sum_x


@compiled
def _moments(x, w, n, n_max, inverse, base, levels):
    """Write the levels of (x - base) * inverse; return sum w l, sum w l l, sum w l x."""
    sum_l = sum_l2 = sum_xl = lanes.splat(0)
    for i in range(n):
        value = lanes.load(x, 8 * i)
        l = lanes.to_f32(lanes.bounded(inverse * (value - base), 0, n_max))
        lanes.store(levels, 8 * i, l)
        wl = lanes.load(w, 8 * i) * l
        sum_l = sum_l + wl
        sum_l2 = sum_l2 + wl * l
        sum_xl = sum_xl + wl * value
    return sum_l, sum_l2, sum_xl


@compiled
def _error(x, w, n, levels, scale, base, absolute):
    """Weighted sum of squared (or absolute) differences."""
    result = lanes.splat(0)
    for i in range(n):
        diff = scale * lanes.load(levels, 8 * i) + base - lanes.load(x, 8 * i)
        diff = lanes.absolute(diff) if absolute else diff * diff
        result = result + lanes.load(w, 8 * i) * diff
    return result


@compiled
def fit_scale_min(x, w, n, n_max, first, step, n_steps, absolute, out, stride):
    """Fit 8 groups of n <= 32 values at `x` with weights at `w` (both transposed).

    The trial scales put n_max + first + k step levels over the range, k = 0 ... n_steps. Writes
    four lists of 8, `stride` numbers apart, to `out`: scale, minus the minimum, and the inverse
    and base that give the levels: bounded(inverse * (x - base), 0, n_max).
    What ggml calls make_qkx2_quants and make_qkx3_quants.
    """
    levels, zero, top = mem.local(1024), lanes.splat(0), np.float32(n_max)
    low, high, sum_w, sum_x = _range_and_sums(x, w, n)
    base = lanes.select(low > zero, zero, low)
    flat, flat_base = high == base, base
    scale = best = best_inverse = best_base = zero
    for k in range(-1, n_steps + 1):
        tried = top if k < 0 else np.float32(np.float32(first + step * np.float32(k)) + top)
        inverse = lanes.splat(tried) / (high - base)
        sum_l, sum_l2, sum_xl = _moments(x, w, n, n_max, inverse, base, levels)
        d = sum_w * sum_l2 - sum_l * sum_l
        this_scale = (sum_w * sum_xl - sum_x * sum_l) / d
        this_base = (sum_l2 * sum_x - sum_l * sum_xl) / d
        above = this_base > zero
        this_base = lanes.select(above, zero, this_base)
        this_scale = lanes.select(above, sum_xl / sum_l2, this_scale)
        if k < 0:  # first of all the range itself
            this_scale, this_base = lanes.splat(1) / inverse, base
        error = _error(x, w, n, levels, this_scale, this_base, absolute)
        better = (d > zero) & (error < best)
        if k < 0:
            better = zero == zero
        best = lanes.select(better, error, best)
        best_inverse = lanes.select(better, inverse, best_inverse)
        best_base = lanes.select(better, base, best_base)
        scale = lanes.select(better, this_scale, scale)
        base = lanes.select(better, this_base, base)
    lanes.store(out, 0, lanes.select(flat, zero, scale))
    lanes.store(out, stride, -lanes.select(flat, flat_base, base))
    lanes.store(out, 2 * stride, lanes.select(flat, zero, best_inverse))
    lanes.store(out, 3 * stride, best_base)


# Scale alone: x = scale * level, levels -n_max to n_max - 1.


@compiled
def _largest(x, n):
    """The value with the largest size (the first of equals), and that size."""
    size = value = lanes.splat(0)
    for i in range(n):
        one = lanes.load(x, 8 * i)
        more = lanes.absolute(one) > size
        size = lanes.select(more, lanes.absolute(one), size)
        value = lanes.select(more, one, value)
    return value, size


@compiled
def _products(x, w, n, n_max, inverse):
    """With l the level of x * inverse: sum w x l and sum w l l."""
    sum_lx = sum_l2 = lanes.splat(0)
    for i in range(n):
        value, weight = lanes.load(x, 8 * i), lanes.load(w, 8 * i)
        l = lanes.to_f32(lanes.bounded(inverse * value, -n_max, n_max - 1))
        sum_lx = sum_lx + weight * value * l
        sum_l2 = sum_l2 + weight * l * l
    return sum_lx, sum_l2


@compiled
def fit_scale(x, w, n, n_max):
    """Fit 8 groups of n values at `x` with weights at `w` (both transposed) by 19 trial scales.

    Returns lanes: scale, and the inverse that gives the levels: level(x * inverse, -n_max,
    n_max - 1); both are 0 for a group that is all but zero. What ggml calls make_qx_quants with
    rmse_type 1.
    """
    zero, tiny = lanes.splat(0), lanes.splat(1e-15)
    value, size = _largest(x, n)
    empty = size < tiny
    scale = best = best_inverse = zero
    for trial in range(19):
        k = trial - 10 if trial < 10 else trial - 9  # -9 to 9, but 0 comes first
        k = k if trial > 0 else 0
        tried = np.float32(n_max) + np.float32(0.1) * np.float32(k)
        inverse = lanes.splat(-tried) / value
        sum_lx, sum_l2 = _products(x, w, n, n_max, inverse)
        better = (sum_l2 > zero) & (sum_lx * sum_lx > best * sum_l2)
        if trial == 0:
            better = sum_l2 != zero
            best_inverse = inverse
        scale = lanes.select(better, sum_lx / sum_l2, scale)
        best = lanes.select(better, scale * sum_lx, best)
        best_inverse = lanes.select(better, inverse, best_inverse)
    return lanes.select(empty, zero, scale), lanes.select(empty, zero, best_inverse)


@compiled
def refine_scale(x, n, n_max, levels):
    """Fit 8 groups of n values at `x`, weighted by their squares, moving a level while it helps.

    Writes the levels, raised to 0 ... 2 n_max - 1, to `levels`, transposed as x, and returns the
    scale. A group that is all but zero has scale 0 and levels 0. What ggml calls make_q3_quants.
    """
    zero, tiny = lanes.splat(0), lanes.splat(1e-15)
    value, size = _largest(x, n)
    empty = size < tiny
    inverse = lanes.splat(np.float32(-n_max)) / value
    sum_lx = sum_l2 = zero
    for i in range(n):
        value = lanes.load(x, 8 * i)
        l = lanes.to_f32(lanes.bounded(inverse * value, -n_max, n_max - 1))
        lanes.store(levels, 8 * i, l)
        w = value * value
        sum_lx = sum_lx + w * value * l
        sum_l2 = sum_l2 + w * l * l
    for _ in range(5):
        changed = zero > zero
        for i in range(n):
            value, l = lanes.load(x, 8 * i), lanes.load(levels, 8 * i)
            w = value * value
            wx = w * value
            lx = sum_lx - wx * l
            l2 = sum_l2 - w * l * l
            new = lanes.to_f32(lanes.bounded(value * l2 / lx, -n_max, n_max - 1))
            new_lx, new_l2 = lx + wx * new, l2 + w * new * new
            moved = (lx > zero) & (new != l) & (new_l2 > zero)
            moved = moved & (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2)
            lanes.store(levels, 8 * i, lanes.select(moved, new, l))
            sum_lx = lanes.select(moved, new_lx, sum_lx)
            sum_l2 = lanes.select(moved, new_l2, sum_l2)
            changed = changed | moved
        if not lanes.any_lane(changed):
            break
    for i in range(n):
        raised = lanes.load(levels, 8 * i) + lanes.splat(np.float32(n_max))
        lanes.store(levels, 8 * i, lanes.select(empty, zero, raised))
    scale = lanes.select(sum_l2 > zero, sum_lx / sum_l2, zero)
    return lanes.select(empty, zero, scale)


# Positive scale: x = scale * level, levels 0 to n_max; for scales of scales.


@compiled
def _byte(level):
    """What is left of a whole number in an unsigned byte, as float32."""
    return lanes.to_f32(level & lanes.splat_i(255))


@compiled
def _positive_error(x, w, n, n_max, inverse, as_byte):
    """Weighted sum of squared differences with the levels that `inverse` gives."""
    result, scale = lanes.splat(0), lanes.splat(1) / inverse
    for i in range(n):
        value = lanes.load(x, 8 * i)
        l = lanes.minimum(lanes.nearest(inverse * value), lanes.splat_i(n_max))
        diff = value - scale * (_byte(l) if as_byte else lanes.to_f32(l))
        result = result + lanes.load(w, 8 * i) * diff * diff
    return result


@compiled
def _refine_positive(x, w, n, n_max, levels, sum_lx, sum_l2, full):
    """Move one level at a time, in groups of the mask `full`, while it helps. Returns the sums."""
    zero = lanes.splat(0)
    for _ in range(5):
        changed = zero > zero
        for i in range(n):
            value, l = lanes.load(x, 8 * i), lanes.load(levels, 8 * i)
            weight = lanes.load(w, 8 * i)
            wx = weight * value
            lx = sum_lx - wx * l
            l2 = sum_l2 - weight * l * l
            whole = lanes.minimum(lanes.nearest(value * l2 / lx), lanes.splat_i(n_max))
            new = lanes.to_f32(whole)
            new_lx, new_l2 = lx + wx * new, l2 + weight * new * new
            moved = full & (lx > zero) & (l2 > zero) & (new != l)
            moved = moved & (new_lx * new_lx * sum_l2 > sum_lx * sum_lx * new_l2)
            lanes.store(levels, 8 * i, lanes.select(moved, _byte(whole), l))
            sum_lx = lanes.select(moved, new_lx, sum_lx)
            sum_l2 = lanes.select(moved, new_l2, sum_l2)
            changed = changed | moved
        if not lanes.any_lane(changed):
            break
    return sum_lx, sum_l2


@compiled
def fit_positive(x, w, n, n_max, levels):
    """Fit 8 groups of n values >= 0 at `x` with weights at `w` (all transposed, as `levels`).

    Returns the scale. Nine trial scales, then one level at a time while that helps; a level
    below 0 wraps as its byte does there. What ggml calls make_qp_quants.
    """
    zero = high = lanes.splat(0)
    for i in range(n):
        one = lanes.load(x, 8 * i)
        high = lanes.select(high > one, high, one)
    full = high >= lanes.splat(1e-15)
    best = inverse = zero
    for trial in range(9):
        k = trial - 5 if trial < 5 else trial - 4  # -4 to 4, but 0 comes first
        k = k if trial > 0 else 0
        this = lanes.splat(np.float32(0.1) * np.float32(k) + np.float32(n_max)) / high
        limit = n_max if trial > 0 else 0x7FFFFFFF
        error = _positive_error(x, w, n, limit, this, trial == 0)
        better = (error < best) if trial > 0 else (zero == zero)
        best = lanes.select(better, error, best)
        inverse = lanes.select(better, this, inverse)
    sum_lx = sum_l2 = zero
    for i in range(n):
        value, weight = lanes.load(x, 8 * i), lanes.load(w, 8 * i)
        whole = lanes.minimum(lanes.nearest(inverse * value), lanes.splat_i(n_max))
        lanes.store(levels, 8 * i, lanes.select(full, _byte(whole), zero))
        l = lanes.to_f32(whole)
        sum_lx = sum_lx + weight * value * l
        sum_l2 = sum_l2 + weight * l * l
    sum_lx, sum_l2 = _refine_positive(x, w, n, n_max, levels, sum_lx, sum_l2, full)
    scale = lanes.select(sum_l2 > zero, sum_lx / sum_l2, zero)
    return lanes.select(full, scale, zero)
