"""Casts to and from half precision, against numpy's: the same bits for every kind of number."""

from __future__ import annotations

import numpy as np
import pytest

from llamapy.convert import halves

ALL = np.arange(1 << 16, dtype=np.uint16)


def by_numpy(values: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return values.astype(np.float16)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("steps", [0, 1, -1, 2048, 4095, 4096, 4097, -4095, -4096, -4097])
def test_singles_near_every_half(steps: int) -> None:
    """At a half, at the middle between two, and one single beside these."""
    bits = ALL.view(np.float16).astype(np.float32).view(np.uint32)
    values = (bits + np.uint32(steps % (1 << 32))).view(np.float32)
    assert same_bits(halves.of_singles(values), by_numpy(values))


def test_singles_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "STEP", 1000)
    bits = np.random.default_rng(0).integers(0, 1 << 32, (71, 99), np.uint32)
    values = bits.view(np.float32)
    assert same_bits(halves.of_singles(values), by_numpy(values))
    assert same_bits(halves.of_singles(values[:, ::3]), by_numpy(values[:, ::3]))
    assert halves.of_singles(values[:0]).shape == (0, 99)


def test_every_bfloat() -> None:
    values = (ALL.astype(np.uint32) << 16).view(np.float32)
    assert same_bits(halves.singles(ALL), values)
    assert same_bits(halves.of_bfloats(ALL), by_numpy(values))


@pytest.mark.parametrize(
    ("value", "lost"),
    [(65519.0, False), (65520.0, True), (-1e9, True), (-np.inf, False), (np.inf, False)]
    + [(np.nan, False)],
)
def test_overflow(value: float, lost: bool) -> None:
    values = np.array([0.5, value, -2.0], np.float32)
    assert halves.overflow(halves.of_singles(values), values) is lost
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert halves.overflow(halves.of_bfloats(bits), bits) is (lost and abs(value) > 65520)
