"""The scale of a group of weights and its points on a grid, by trial scales (IQ2 and IQ3).

A group has n_points points of n_numbers values; `x` holds their sizes (signs taken off), `w` the
weights, `root_w` the square roots of the weights, by which points are chosen. How many points and
trials there are says the plan, the first search table.
"""

from __future__ import annotations

import numpy as np

from llamapy.native import compiled, lanes, mem
from llamapy.quants._neighbours import MODE, N_NUMBERS, N_POINTS, N_TRIALS, PLACES
from llamapy.quants._points import ROOM, free_codes, on_grid, sums
from llamapy.quants._weights import clear, prepare, widest

# Which points are chosen once more by the scale found: those that the best trial moved onto the
# grid; all of them if it moved any; all.
MOVED, ALL_IF_MOVED, ALL = range(3)


@compiled
def spread_trials(n_numbers, n_trials, most, inverse):
    """Write inverse scales by which `most` becomes the greatest number of a grid, or nearly so."""
    top, step = (5, np.float32(0.1)) if n_numbers == 8 else (15, np.float32(0.2))
    for t in range(ROOM):
        off = np.float32(min(t, n_trials - 1) - n_trials // 2)
        mem.put_f32(inverse, t, (np.float32(top) + off * step) / most)


@compiled
def try_scales(x, root_w, inverse, free, chosen, search):
    """Write the free codes and the codes on the grid of every trial; False if a point has none."""
    plan, found = mem.i64(search, 0), True
    n_numbers, n_trials = mem.i64(plan, N_NUMBERS), mem.i64(plan, N_TRIALS)
    for k in range(mem.i64(plan, N_POINTS)):
        at, row = 4 * n_numbers * k, 4 * ROOM * k
        free_codes(x + at, n_numbers, inverse, n_trials, free + row)
        for t in range(n_trials):
            scale = np.float32(1) / mem.f32(inverse, t)
            code = on_grid(mem.i32(free + row, t), x + at, root_w + at, n_numbers, scale, search)
            mem.put_i32(chosen + row, t, code)
            found &= code >= 0
    return found


@compiled
def best_trial(trial_sums, n_trials, scale):
    """Index of the trial with the greatest qx * qx / qq, and its scale; else (-1, scale)."""
    best, index = np.float32(0), -1
    for t in range(n_trials):
        qx, qq = mem.f32(trial_sums, t), mem.f32(trial_sums, ROOM + t)
        if qq > 0 and qx * qx > best * qq:
            scale = qx / qq
            best = scale * qx
            index = t
    return index, scale


@compiled
def refit(x, w, root_w, again, scale, codes, search):
    """Choose the points of the bits of `again` anew by the scale, and then the scale by the points.

    Codes are ROOM int32 apart. NaN if a point is not found.
    """
    plan, inverse, free, both = mem.i64(search, 0), mem.local(32), mem.local(32), mem.local(256)
    n_numbers, n_points = mem.i64(plan, N_NUMBERS), mem.i64(plan, N_POINTS)
    lanes.store(inverse, 0, lanes.splat(np.float32(1) / scale))
    for k in range(n_points):
        if again >> k & 1:
            at = 4 * n_numbers * k
            free_codes(x + at, n_numbers, inverse, np.int64(8), free)
            code = on_grid(mem.i32(free, 0), x + at, root_w + at, n_numbers, scale, search)
            if code < 0:
                return np.float32(np.nan)
            mem.put_i32(codes, ROOM * k, code)
    sums(codes, x, w, n_numbers, n_points, np.int64(8), both)
    qx, qq = mem.f32(both, 0), mem.f32(both, ROOM)
    return qx / qq if qq > 0 else scale


@compiled
def fit(x, w, root_w, most, scale, codes, search):
    """The scale of a group, and its codes at `codes` (ROOM int32 a point, the first is meant).

    The trials make `most` the greatest number; `scale` counts if none is any good. The result may
    be negative. NaN where ggml aborts.
    """
    free, inverse, trial_sums = mem.local(1024), mem.local(128), mem.local(256)
    plan = mem.i64(search, 0)
    n_points, n_trials = mem.i64(plan, N_POINTS), mem.i64(plan, N_TRIALS)
    n_numbers, mode = mem.i64(plan, N_NUMBERS), mem.i64(plan, MODE)
    spread_trials(n_numbers, n_trials, most, inverse)
    if not try_scales(x, root_w, inverse, free, codes, search):
        return np.float32(np.nan)
    sums(codes, x, w, n_numbers, n_points, n_trials, trial_sums)
    t, scale = best_trial(trial_sums, n_trials, scale)
    again = 0
    for k in range(n_points):
        code = mem.i32(codes, ROOM * k + t) if t >= 0 else np.int32(0)
        mem.put_i32(codes, ROOM * k, code)
        again |= (t >= 0 and code != mem.i32(free, ROOM * k + t)) << k
    if mode == ALL or (mode == ALL_IF_MOVED and (again or t < 0)):
        again = (1 << n_points) - 1
    if again and scale > 0:
        scale = refit(x, w, root_w, again, scale, codes, search)
    return scale


@compiled
def put_places(codes, n_points, search, places):
    """Write the grid indices (int32) of a group's codes."""
    for k in range(n_points):
        mem.put_i32(places, k, mem.i32(mem.i64(search, PLACES), mem.i32(codes, ROOM * k)))


@compiled
def fit_block(x, importance, sigma2, floor, even, too_small, search, scales, signs, places):
    """Fit the groups of 256 values: their scales (float32), sign bytes (int64) and indices (int32).

    A group of sizes below too_small is all 0. Returns the widest scale; NaN where ggml aborts.
    """
    size, w, root_w, codes = mem.local(128), mem.local(128), mem.local(128), mem.local(1024)
    plan = mem.i64(search, 0)
    n_numbers, n_points = mem.i64(plan, N_NUMBERS), mem.i64(plan, N_POINTS)
    n, top = n_numbers * n_points, np.float32(5) if n_numbers == 8 else np.float32(15)
    for group in range(256 // n):
        at, scale = 4 * n * group, np.float32(0)
        of_group = importance + at if importance else importance
        bits, most = prepare(x + at, of_group, n, sigma2, floor, even, size, w, root_w)
        if most < too_small:
            bits = np.int64(0)
            clear(places + 4 * n_points * group, 4 * n_points)
        else:
            scale = fit(size, w, root_w, most, most / top, codes, search)
            if scale < 0:
                scale, bits = -scale, ~bits
            if not scale >= 0:
                return scale
            put_places(codes, n_points, search, places + 4 * n_points * group)
        mem.put_f32(scales, group, scale)
        mem.put_i64(signs, group, bits)
    return widest(scales, 256 // n)
