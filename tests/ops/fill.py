"""Seeded random contents of tensors: floats, ids, positions, masks, and valid blocks of any
type."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from llamapy.backend.reference.values import encode
from llamapy.quants import codec
from llamapy.quants.codec import Codec

Array = np.ndarray[Any, Any]


def draw(
    rng: np.random.Generator,
    kind: type[Codec],
    shape: tuple[int, ...],
    fill: str,
    low: float,
    high: float,
) -> Array:
    """Blocks of `kind`, shape [ne3, ne2, ne1, blocks a row]."""
    if kind.n_values > 1:
        blocks = rng.choice(valid_blocks(kind.name), shape)
        return _sizes(rng, kind, blocks) if fill == "sizes" else blocks
    numbers = FILLS[fill](rng, shape, low, high)
    return numbers.astype(kind.block) if kind.block.kind == "i" else encode(kind, numbers)


@cache
def valid_blocks(name: str) -> Array:
    """Some hundred random blocks of any type whose largest value is about 1, and all are finite."""
    kind = codec.get(name)
    rng = np.random.default_rng(kind.type_id)
    blocks = rng.integers(0, 256, (1 << 12, kind.n_bytes), np.uint8).reshape(-1).view(kind.block)
    scales = [f for f in kind.block.names or () if kind.block[f].kind == "f"]
    for field in scales:
        blocks[field] = rng.uniform(0.5, 1.0, blocks[field].shape)
    with np.errstate(all="ignore"):
        if scales:
            largest = np.abs(kind.dequantize(blocks)).max(axis=1)
            wanted = rng.uniform(0.5, 2.0, len(blocks)) * rng.choice([-1, 1], len(blocks))
            for field in scales:
                blocks[field] = (blocks[field].T * (wanted / largest)).T
        largest = np.abs(kind.dequantize(blocks)).max(axis=1)
    good = blocks[(largest > 0.25) & (largest < 4)]
    assert len(good) > 32, name
    return good[:512]


def _sizes(rng: np.random.Generator, kind: type[Codec], blocks: Array) -> Array:
    """The same blocks, but their scales of all sizes, some of them none."""
    factor = np.exp2(-rng.integers(0, 14, blocks.shape)) * rng.choice([0, 1, 1, 1], blocks.shape)
    for field in [f for f in kind.block.names or () if kind.block[f].kind == "f"]:
        blocks[field] = (blocks[field].T * factor.T).T
    return blocks


def _normal(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    return rng.standard_normal(shape).astype(np.float32) * np.float32(high) + np.float32(low)


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    return rng.uniform(low, high, shape).astype(np.float32)


def _channels(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """Normal, but every 113th channel `high` times as large: what language models do."""
    numbers = rng.standard_normal(shape).astype(np.float32)
    numbers[..., 50::113] *= np.float32(high)
    return numbers


def _ids(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """Any numbers from low up to, without, high."""
    return rng.integers(int(low), int(high), shape)


def _distinct(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """Numbers of the range that differ within each row."""
    numbers = np.broadcast_to(np.arange(int(low), int(high)), (*shape[:-1], int(high - low)))
    return rng.permuted(numbers, axis=-1)[..., : shape[-1]]


def _count(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """low, low + 1, ... (positions)."""
    return np.arange(int(low), int(low) + int(np.prod(shape))).reshape(shape)


def _ties(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """Whole numbers, so that many are equal."""
    return rng.integers(int(low), int(high), shape).astype(np.float32)


def _causal(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """0 where query i, at the end of the cells, may look; -inf elsewhere; `high` > 1 is a
    window."""
    n_q, n_kv = shape[-2:]
    ahead = np.arange(n_kv) - (np.arange(n_q)[:, None] + max(0, n_kv - n_q))
    hidden = (ahead > 0) | ((ahead <= -high) if high > 1 else False)
    return np.broadcast_to(np.where(hidden, -np.inf, 0.0).astype(np.float32), shape).copy()


def _distance(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """The causal mask with -distance in it, as ALiBi wants it."""
    n_q, n_kv = shape[-2:]
    ahead = np.arange(n_kv) - (np.arange(n_q)[:, None] + max(0, n_kv - n_q))
    mask = np.where(ahead > 0, -np.inf, ahead).astype(np.float32)
    return np.broadcast_to(mask, shape).copy()


def _holes(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Array:
    """-inf at random (share `high`), and one row in seven masked whole."""
    mask = np.where(rng.random(shape) < high, -np.inf, 0.0).astype(np.float32)
    mask[..., 3::7, :] = -np.inf
    mask[..., 0, 0] = 0.0
    return mask


FILLS = {
    "normal": _normal,
    "uniform": _uniform,
    "channels": _channels,
    "ids": _ids,
    "distinct": _distinct,
    "count": _count,
    "ties": _ties,
    "causal": _causal,
    "distance": _distance,
    "holes": _holes,
}
