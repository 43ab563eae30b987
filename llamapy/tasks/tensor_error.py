"""How far the values of a tensor are from those of another: sums that can be added up in pieces.

Knows arrays only; rows are [n, n_per_row]. Used by reports, comparisons and size budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

# The histogram counts sizes of errors against the root mean square of their row, by decade.
DECADES = (-6, 1)  # from 1e-6 to 10 times the row's root mean square
PER_DECADE = 8
N_BINS = (DECADES[1] - DECADES[0]) * PER_DECADE + 2  # with those below and those above


@dataclass
class TensorError:
    """Sums over values and their errors. `worst` is where the largest error is: row, column."""

    n: int = 0
    squares: float = 0.0  # of the values
    others: float = 0.0  # squares of the other values
    products: float = 0.0
    errors: float = 0.0  # squares of the differences
    weighted: float = 0.0  # squares of the differences, times the importance of their column
    weighted_squares: float = 0.0
    largest: float = 0.0
    worst: tuple[int, int] = (0, 0)
    histogram: NDArray[np.int64] = field(default_factory=lambda: np.zeros(N_BINS, np.int64))

    def add(
        self, values: Floats, others: Floats, importance: Floats | None = None, first_row: int = 0
    ) -> None:
        """Count rows: the true values and what stands for them, both [n, n_per_row]."""
        if not values.size:
            return
        error = others - values
        squared = np.square(error, dtype=np.float64)
        own = np.square(values, dtype=np.float64)
        self.n += values.size
        self.squares += float(own.sum())
        self.others += float(np.square(others, dtype=np.float64).sum())
        self.products += float(np.multiply(values, others, dtype=np.float64).sum())
        self.errors += float(squared.sum())
        weights = np.ones(values.shape[1]) if importance is None else importance.astype(np.float64)
        self.weighted += float((squared @ weights).sum())
        self.weighted_squares += float((own @ weights).sum())
        size = np.abs(error, out=error)
        at = int(size.argmax())
        if not float(size.flat[at]) <= self.largest:
            self.largest = float(size.flat[at])
            row, column = divmod(at, values.shape[1])
            self.worst = (first_row + row, column)
        self._count(size, np.sqrt(own.mean(axis=1, keepdims=True)))

    def _count(self, size: Floats, rms: NDArray[np.float64]) -> None:
        with np.errstate(divide="ignore", invalid="ignore"):
            decades = np.log10(size / rms.astype(np.float32))
        bins = np.nan_to_num((decades - DECADES[0]) * PER_DECADE, nan=-1, posinf=N_BINS, neginf=-1)
        places = np.clip(np.floor(bins) + 1, 0, N_BINS - 1).astype(np.int64)
        self.histogram += np.bincount(places.ravel(), minlength=N_BINS)

    def add_equal(self, n: int) -> None:
        """Count n values that are the same on both sides, whatever they are."""
        self.n += n
        self.histogram[0] += n

    def merge(self, other: TensorError) -> None:
        """Add the sums of other rows."""
        self.n += other.n
        self.squares += other.squares
        self.others += other.others
        self.products += other.products
        self.errors += other.errors
        self.weighted += other.weighted
        self.weighted_squares += other.weighted_squares
        if not other.largest <= self.largest:
            self.largest, self.worst = other.largest, other.worst
        self.histogram += other.histogram

    @property
    def rmse(self) -> float:
        """Root mean square of the errors."""
        return math.sqrt(self.errors / self.n) if self.n else 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the errors by that of the values."""
        return _ratio(self.errors, self.squares)

    @property
    def weighted_relative(self) -> float:
        """The same with columns weighted by their importance."""
        return _ratio(self.weighted, self.weighted_squares)

    @property
    def cosine(self) -> float:
        """Cosine of the angle between both tensors as vectors; 1 for equal ones."""
        scale = math.sqrt(self.squares * self.others)
        if not self.errors or not scale:
            return 1.0 if not self.errors else 0.0
        return self.products / scale

    def as_json(self) -> dict[str, Any]:
        """The figures, and the histogram without its empty ends."""
        return {
            "n": self.n,
            "rmse": _plain(self.rmse),
            "relative_error": _plain(self.relative),
            "weighted_relative_error": _plain(self.weighted_relative),
            "max_error": _plain(self.largest),
            "max_error_at": list(self.worst),
            "cosine": _plain(self.cosine),
            "histogram": self.histogram.tolist(),
        }


def _plain(value: float) -> float | str:
    """What strict JSON can hold."""
    return value if math.isfinite(value) else str(value)


def _ratio(errors: float, squares: float) -> float:
    if not errors:
        return 0.0
    return math.sqrt(errors / squares) if squares else math.inf


def bin_edges() -> list[float]:
    """Edges of the histogram's bins: errors by the row's root mean square; 0 and infinity first
    and last.
    """
    inner = [10 ** (DECADES[0] + i / PER_DECADE) for i in range(N_BINS - 1)]
    return [0.0, *inner, math.inf]
