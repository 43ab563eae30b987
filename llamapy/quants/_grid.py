"""Codebooks of the IQ types: points of 8 or 4 numbers, and the signs that files keep beside them.

Knows how a grid is stored and how points get their signs, in numpy and compiled; no block's layout.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from llamapy.native import compiled

_FOLDER = Path(__file__).parent / "grids"

Floats = np.ndarray[Any, np.dtype[np.float32]]
Array = np.ndarray[Any, Any]


@cache
def points(name: str) -> np.ndarray[Any, np.dtype[np.int8]]:
    """The grid `name`: int8 [n, 8] or [n, 4]. The files are written by tools/make_grids.py."""
    with np.load(_FOLDER / f"{name}.npz") as file:
        return np.ascontiguousarray(file["points"])


@cache
def eighths() -> np.ndarray[Any, np.dtype[np.int8]]:
    """The points of IQ1 as eighths, shifted by 1 up, then down: int8 [2, 2048, 8]."""
    return np.stack([8 * points("iq1") + 1, 8 * points("iq1") - 1])


@cache
def sign_masks(n_bits: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """For each number of n_bits (7 or 8): a byte 255 where its bit is set, else 0; [2 ** n_bits].

    Of seven bits the eighth follows: the number of minus signs is even.
    """
    bits = np.arange(2**n_bits, dtype=np.uint8)
    spread = np.unpackbits(full_signs(bits) if n_bits == 7 else bits, bitorder="little")
    return (spread * np.uint8(255)).view("<u8").astype(np.uint64)


def full_signs(seven: Array) -> Array:
    """Seven sign bits (uint8) and the eighth, which makes their number even."""
    return seven | (np.bitwise_count(seven) & np.uint8(1)) << np.uint8(7)


def signed(grid_points: Array, signs: Array) -> Floats:
    """Points [..., 8] with the signs of a byte each [...]: float32, negative if the bit is set."""
    minus = np.unpackbits(signs[..., None], axis=-1, bitorder="little")
    values = grid_points.astype(np.float32)
    return np.where(minus, -values, values)


def nibbles(packed: Array) -> Floats:
    """Bytes [n, k] -> their low and high halves in turn: float32 [n, 2 k]."""
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1).astype(np.float32)


@compiled
def with_signs(point, mask):
    """Eight small positive bytes in a uint64, negated where the mask's bytes are 255."""
    return (point ^ mask) + (mask & np.uint64(0x0101010101010101))
