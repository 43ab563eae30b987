"""float32 and bfloat16 to float16, and bfloat16 to float32, with integers: the bits of numpy's own
casts, several times as fast. Holds no names and no files.

A normal half is a single with its exponent moved and 13 bits rounded away; numbers out of that
range (small ones, infinities, NaN) are left to numpy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

STEP = 1 << 16  # values at a time: what is between stays in cache
_SIGN, _INFINITE = 0x8000, 0x7C00
_SMALLEST, _BEYOND = 0x38800000, 0x47800000  # singles: 2 ** -14, the smallest normal half; 2 ** 16
_MOVE = 112  # difference of the exponents' biases


def of_singles(values: Array) -> Array:
    """Nearest halves, ties to even. float32 of any shape -> float16; what is too large is inf."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4").reshape(-1)
    halves = np.empty(bits.size, "<u2")
    rounded, other = np.empty((2, min(STEP, bits.size)), "<u4")
    for first in range(0, bits.size, STEP):
        x, out = bits[first : first + STEP], halves[first : first + STEP]
        r, t = rounded[: x.size], other[: x.size]
        np.right_shift(x, 13, out=t)
        np.bitwise_and(t, 1, out=t)  # whether a tie goes up
        np.bitwise_and(x, 0x7FFFFFFF, out=r)
        np.add(t, r, out=t)
        np.add(t, (0xFFF - (_MOVE << 23)) % (1 << 32), out=t)
        np.right_shift(t, 13, out=t)
        np.subtract(r, _SMALLEST, out=r)  # wraps where the number is smaller
        odd = np.flatnonzero(r >= _BEYOND - _SMALLEST)
        np.right_shift(x, 16, out=r)
        np.bitwise_and(r, _SIGN, out=r)
        np.bitwise_or(t, r, out=out, casting="unsafe")
        if odd.size:
            out[odd] = _by_numpy(x[odd].view("<f4"))
    return halves.view("<f2").reshape(values.shape)


def of_bfloats(bits: Array) -> Array:
    """The same of bfloat16 as bits in uint16: all of theirs fit, so nothing is rounded."""
    flat = np.ascontiguousarray(bits, "<u2").reshape(-1)
    halves = np.empty(flat.size, "<u2")
    for first in range(0, flat.size, STEP):
        x, out = flat[first : first + STEP], halves[first : first + STEP]
        size = x & 0x7FFF
        np.subtract(size, _SMALLEST >> 16, out=size)
        odd = np.flatnonzero(size >= (_BEYOND - _SMALLEST) >> 16)
        np.add(size, (_SMALLEST >> 16) - (_MOVE << 7), out=size)
        np.left_shift(size, 3, out=size)
        np.bitwise_and(x, _SIGN, out=out)
        np.bitwise_or(out, size, out=out)
        if odd.size:
            out[odd] = _by_numpy(singles(x[odd]))
    return halves.view("<f2").reshape(bits.shape)


def singles(bits: Array) -> Array:
    """The numbers that bfloat16 bits in uint16 stand for, float32."""
    pairs = np.zeros((bits.size, 2), "<u2")
    pairs[:, 1] = bits.reshape(-1)
    return pairs.view("<f4").reshape(bits.shape)


def all_finite(halves: Array) -> bool:
    """Whether none is infinite or no number. float16."""
    bits = halves.reshape(-1).view("<u2")
    return not bits.size or (bits.view("<i2").max() < _INFINITE and bits.max() < _SIGN | _INFINITE)


def overflow(halves: Array, values: Array) -> bool:
    """Whether a half is infinite whose number is not. values: float32, or bits of bfloat16."""
    if all_finite(halves):
        return False
    given = values.reshape(-1)[np.isinf(halves.reshape(-1))]
    return bool(np.isfinite(singles(given) if given.dtype == np.uint16 else given).any())


def _by_numpy(values: Array) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype("<f2").view("<u2")
