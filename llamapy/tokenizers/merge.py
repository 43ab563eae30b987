"""Merging of neighbours, the heart of byte-pair and SentencePiece tokenizers, in plain Python.

Both join the neighbours with the least rank, the leftmost of equals, until none can be joined.
`join_kernels.py` holds the compiled twin for long texts; this one starts at once.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Rank = Callable[
    [bytes, bytes], float | None
]  # rank of joining two neighbours, None if they do not join

SHORT = 32  # up to this many parts a plain search for the least rank beats a heap


def merge(parts: list[bytes], rank: Rank) -> list[bytes]:
    """Join neighbours of `parts` until none can be joined."""
    return _merge_short(parts, rank) if len(parts) <= SHORT else _merge_long(parts, rank)


def _merge_short(parts: list[bytes], rank: Rank) -> list[bytes]:
    never = float("inf")
    ranks = [never if (r := rank(a, b)) is None else r for a, b in zip(parts, parts[1:])]
    while ranks:
        least = min(ranks)
        if least == never:
            break
        at = ranks.index(least)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del ranks[at]
        for i in (at - 1, at):
            if 0 <= i < len(ranks):
                new = rank(parts[i], parts[i + 1])
                ranks[i] = never if new is None else new
    return parts


def _merge_long(parts: list[bytes], rank: Rank) -> list[bytes]:
    n = len(parts)
    before, after = list(range(-1, n - 1)), [*range(1, n), -1]
    current: list[float | None] = [rank(a, b) for a, b in zip(parts, parts[1:])]
    current.append(None)
    heap = [(r, i) for i, r in enumerate(current) if r is not None]
    heapify(heap)
    alive = [True] * n
    while heap:
        least, left = heappop(heap)
        if not alive[left] or current[left] != least:
            continue  # one of the two has been joined since
        right = after[left]
        parts[left] += parts[right]
        alive[right] = False
        after[left] = after[right]
        if after[right] >= 0:
            before[after[right]] = left
        for i in (before[left], left):
            if i >= 0:
                new = rank(parts[i], parts[after[i]]) if after[i] >= 0 else None
                current[i] = new
                if new is not None:
                    heappush(heap, (new, i))
    return [part for part, kept in zip(parts, alive) if kept]
