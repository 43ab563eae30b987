"""For a point that is not on a grid: the points on it that are near, in the order ggml tries them.

A code packs the levels of a point's numbers: 2 bits each of eight (levels 0 to 2) or 3 bits each of
four (0 to 7). `places` gives for a code on the grid its index, else -1 - the place in `lists` of

    the number n of near points, a multiple of 8 (the last is repeated); then n codes

Near are the points at the `want` smallest distances: nearer ones first, then lower indices. The
lists are made at the first use, by compiled code.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from llamapy.native import atomic, compiled, mem
from llamapy.quants._grid import Array, points

# Places of the facts in the plan.
N_NUMBERS, N_GRID, WANT, N_POINTS, N_TRIALS, MODE = range(6)

# Places of the search tables.
PLAN, CODES, READY, PLACES, LISTS = range(5)

_WANT = {"iq1": 3, "iq2_xxs": 2, "iq2_xs": 2, "iq2_s": 1, "iq3_xxs": 2, "iq3_s": 3}


def search_tables(grid: str, n_points: int, n_trials: int, mode: int = 0) -> tuple[Array, ...]:
    """The plan of a search for groups of n_points (see `_fit`), and what `make_once` needs.

    Grid codes, and room for `ready`, `places` and `lists`.
    """
    n_grid, n_numbers = points(grid).shape
    plan = [n_numbers, n_grid, _WANT[grid], n_points, n_trials, mode]
    return np.array(plan, np.int64), *_room(grid)


@cache
def _room(grid: str) -> tuple[np.ndarray[Any, Any], ...]:
    levels = np.unique(points(grid), return_inverse=True)[1].reshape(points(grid).shape)
    n_grid, n_numbers = levels.shape
    n_levels, bits = (3, 2) if n_numbers == 8 else (8, 3)
    codes = (levels << bits * np.arange(n_numbers)).sum(axis=1).astype(np.uint16)
    # Zeros take memory only once written to: room for the longest possible lists costs nothing.
    lists = np.zeros(n_levels**n_numbers * (n_grid + 8), np.uint16)
    return codes, np.zeros(1, np.int64), np.zeros(1 << bits * n_numbers, np.int32), lists


@compiled
def distances(code, codes, n_grid, n_numbers, out):
    """Write the squared distance (a uint8) of each grid point from `code`; return the least."""
    bits, mask, least = (2, 3, 255) if n_numbers == 8 else (3, 7, 255)
    for p in range(n_grid):
        other, total = mem.u16(codes, p), 0
        for i in range(n_numbers):
            difference = ((other >> bits * i) & mask) - ((code >> bits * i) & mask)
            total += difference * difference
        mem.put_u8(out, p, total)
        least = min(least, total)
    return least


@compiled
def put_list(distance, shell, codes, n_grid, want, out):
    """Write a list, from the points `shell` away on; return its length with its number."""
    n = 0
    while want > 0:
        before = n
        for p in range(n_grid):
            if mem.u8(distance, p) == shell:
                n += 1
                mem.put_u16(out, n, mem.u16(codes, p))
        want -= n > before
        shell += 1
    while n % 8:
        n += 1
        mem.put_u16(out, n, mem.u16(out, n - 1))
    mem.put_u16(out, 0, n)
    return n + 1


@compiled
def make_once(search):
    """Make places and lists, if not yet done; `search`: the addresses of the search tables.

    Threads that come at the same time each make them: they write the same numbers.
    """
    plan, codes, ready = mem.i64(search, PLAN), mem.i64(search, CODES), mem.i64(search, READY)
    places, lists = mem.i64(search, PLACES), mem.i64(search, LISTS)
    if atomic.load(ready) != 0:
        return
    n_numbers, n_grid = mem.i64(plan, N_NUMBERS), mem.i64(plan, N_GRID)
    distance, at, p = mem.local(2048), 0, 0
    for code in range(1 << 16 if n_numbers == 8 else 1 << 12):
        if n_numbers == 8 and code & code >> 1 & 0x5555:
            continue  # a level 3
        least = distances(code, codes, n_grid, n_numbers, distance)
        if least > 0:
            mem.put_i32(places, code, -1 - at)
            want = mem.i64(plan, WANT)
            at += put_list(distance, least, codes, n_grid, want, lists + 2 * at)
        else:
            p = 0
            while mem.u8(distance, p) != 0:
                p += 1
            mem.put_i32(places, code, p)
    atomic.store(ready, 1)
