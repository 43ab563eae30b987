"""What is in an importance matrix, and how two of them differ. No model is needed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llamapy.tasks.importance import Entry, Imatrix

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Statistics:
    """Figures of one weight, over the mean squares of all columns of all matrices that were seen.

    n_mat, n_cols  matrices (experts) and columns
    least, most    tokens that the matrix with the fewest, the most has seen
    unseen         numbers of matrices that no token has reached
    mean, std, largest   of the mean squares
    zeros          columns that were always zero
    entropy        of the mean squares as shares of their sum: 1 if all columns count the same
    top            share of the sum that the 1 % largest columns have
    """

    name: str
    n_mat: int
    n_cols: int
    least: int
    most: int
    unseen: list[int]
    mean: float
    std: float
    largest: float
    zeros: int
    entropy: float
    top: float


def statistics(imatrix: Imatrix) -> list[Statistics]:
    """One for each weight, by block number and name."""
    order = sorted(imatrix.entries, key=_place)
    return [_figures(name, imatrix.entries[name]) for name in order]


def _place(name: str) -> tuple[int, int, str]:
    parts = name.split(".")
    in_block = len(parts) > 1 and parts[0] == "blk" and parts[1].isdigit()
    return (0, int(parts[1]), name) if in_block else (1, 0, name)


def _seen(entry: Entry) -> Doubles:
    """Mean squares [n_seen, n_cols] of the matrices that tokens have reached."""
    kept = entry.counts > 0
    if len(entry.sums) != len(kept):  # one count for all
        return entry.sums.astype(np.float64) / max(int(entry.counts.max()), 1)
    return entry.sums[kept].astype(np.float64) / entry.counts[kept][:, None]


def _figures(name: str, entry: Entry) -> Statistics:
    found = _seen(entry).ravel()
    counts, total = entry.counts, float(found.sum())
    shares = found[found > 0] / total if total > 0 else found[:0]
    even = np.log(found.size) if found.size > 1 else 1.0
    top = np.sort(found)[::-1][: max(1, found.size // 100)]
    return Statistics(
        name,
        len(counts),
        entry.sums.shape[-1],
        int(counts.min()),
        int(counts.max()),
        entry.unseen,
        float(found.mean()) if found.size else 0.0,
        float(found.std()) if found.size else 0.0,
        float(found.max()) if found.size else 0.0,
        int((found == 0).sum()),
        float(-(shares * np.log(shares)).sum() / even) if shares.size else 0.0,
        float(top.sum() / total) if total > 0 else 0.0,
    )


@dataclass(frozen=True)
class Difference:
    """How one weight's mean squares differ. cosine: of the two vectors; relative: the norm of the
    difference by that of the first; largest: the largest relative difference of a column."""

    name: str
    cosine: float
    relative: float
    largest: float


@dataclass(frozen=True)
class Comparison:
    """differences   of weights that both have, the largest first
    only_a, only_b  names that the other has not
    misfits         names with other sizes
    """

    differences: list[Difference]
    only_a: list[str]
    only_b: list[str]
    misfits: list[str]


def compare(a: Imatrix, b: Imatrix) -> Comparison:
    """Compare what a quantization makes of two matrices: mean squares, whatever the counts."""
    both = sorted(a.entries.keys() & b.entries.keys())
    found, misfits = [], []
    for name in both:
        p, q = a.entries[name].mean_squares(), b.entries[name].mean_squares()
        if p.size != q.size:
            misfits.append(name)
            continue
        found.append(_difference(name, p.ravel().astype(float), q.ravel().astype(float)))
    return Comparison(
        sorted(found, key=lambda d: -d.relative),
        sorted(a.entries.keys() - b.entries.keys()),
        sorted(b.entries.keys() - a.entries.keys()),
        misfits,
    )


def _difference(name: str, p: Doubles, q: Doubles) -> Difference:
    norms = float(np.linalg.norm(p) * np.linalg.norm(q))
    cosine = float(p @ q) / norms if norms else float(not p.any() and not q.any())
    base = float(np.linalg.norm(p)) or 1.0
    scale = np.maximum(np.abs(p), np.abs(q))
    each = np.divide(np.abs(p - q), scale, out=np.zeros_like(p), where=scale > 0)
    return Difference(name, cosine, float(np.linalg.norm(p - q)) / base, float(each.max()))
