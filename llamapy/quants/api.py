"""`quantize` and `dequantize`: arrays in, arrays out, for every type; checks, and rows shared by
threads.

Does not know files or models: what to do about odd importances or bad tensors is for `tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llamapy.core.errors import QuantError
from llamapy.native import compiled, lanes, mem
from llamapy.quants import codec
from llamapy.quants.codec import Codec

# What ggml_quantize_requires_imatrix says.
NEED_IMPORTANCE = frozenset({"iq2_xxs", "iq2_xs", "iq1_s"})

_OFTEN_TOO_LARGE = 1024.0  # weights beyond this are checked after encoding: scales may overflow
_TOO_LARGE = 2.0**30  # beyond what any type with half-precision scales can hold
_WITHOUT_LIMIT = frozenset({"f32", "bf16", "q8_K", "mxfp4", "nvfp4"})
_STEP = 1 << 20  # values dequantized at a time, so that temporaries stay small


def quantize(
    values: ArrayLike,
    kind: str | int | type[Codec],
    importance: ArrayLike | None = None,
    *,
    threads: int = 1,
    allow_nonfinite: bool = False,
) -> NDArray[np.uint8]:
    """Encode rows of numbers to the bytes that ggml_quantize_chunk gives.

    values      [..., n_per_row] numbers; all but the last axis are rows
    kind        type by name (in any case), ggml number or class
    importance  [n_per_row] weights of the columns (mean squares of activations), or None
    threads     share the rows; the bytes do not depend on it
    Returns uint8 [n_rows, row_bytes]. QuantError names the row and column of a number that is not
    finite or too large for the type (unless `allow_nonfinite`), and says what else is wrong: rows
    that do not divide into blocks, an importance of another length, or none where one is needed,
    importances that the IQ types cannot use. With `allow_nonfinite` the blocks of such numbers are
    not ggml's, except in f32, f16 and bf16.
    """
    kind = codec.get(kind)
    rows = _rows(values)
    weights = _weights(importance, kind, rows.shape[1], allow_nonfinite)
    if kind.encode is None:
        raise QuantError(f"nothing is quantized to {kind.name}", hint="it only holds plain numbers")
    out = np.empty((len(rows), kind.row_bytes(rows.shape[1])), np.uint8)
    if not rows.size:
        return out
    largest = _largest(rows, threads)
    if not allow_nonfinite:
        _check_sizes(rows, largest, kind)
    address = 0 if weights is None else weights.ctypes.data
    tables = codec.tables_address(kind)

    def encode(first: int, last: int) -> None:
        source, target = rows[first:last], out[first:last]
        shape = (last - first, rows.shape[1])
        stopped = kind.encode(source.ctypes.data, target.ctypes.data, *shape, address, tables)
        if stopped:
            raise QuantError(
                f"row {first + stopped - 1} cannot be quantized to {kind.name}",
                hint="are there importances that are negative or very large?",
            )

    _share(encode, len(rows), rows.size, threads)
    if largest > _OFTEN_TOO_LARGE and not allow_nonfinite:
        _check_overflow(rows, out, kind)
    return out


def dequantize(
    blocks: bytes | bytearray | memoryview | NDArray[Any],
    kind: str | int | type[Codec],
    shape: Sequence[int] | int | None = None,
) -> NDArray[np.float32]:
    """Decode blocks to the values that ggml gives, bit for bit.

    blocks  bytes, or an array of uint8 or of the type's blocks, as they lie in a file
    kind    type by name (in any case), ggml number or class
    shape   of the result; without it uint8 [n_rows, row_bytes] gives [n_rows, n_per_row], and
            anything else a flat array
    Returns float32. QuantError if the blocks do not fill the shape or a row does not divide.
    """
    kind = codec.get(kind)
    raw = np.ascontiguousarray(
        blocks if isinstance(blocks, np.ndarray) else np.frombuffer(blocks, "u1")
    )
    given = raw.shape
    raw = raw.reshape(-1).view(np.uint8)
    n_blocks, rest = divmod(raw.size, kind.n_bytes)
    if rest:
        raise QuantError(
            f"{raw.size} bytes are no whole number of {kind.name} blocks of {kind.n_bytes}"
        )
    if shape is None:
        by_row = len(given) == 2 and given[1] % kind.n_bytes == 0
        shape = (given[0], -1) if by_row and given[0] else (n_blocks * kind.n_values,)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    shape = _whole_shape(shape, n_blocks * kind.n_values, kind)
    out = np.empty((n_blocks, kind.n_values), np.float32)
    step = max(1, _STEP // kind.n_values)
    typed = raw.view(kind.block)
    for i in range(0, n_blocks, step):
        out[i : i + step] = kind.dequantize(typed[i : i + step])
    return out.reshape(shape)


def _rows(values: ArrayLike) -> NDArray[np.float32]:
    """Any array as contiguous float32 [n_rows, n_per_row]."""
    array = np.asarray(values)
    if array.ndim == 0 or array.dtype.kind not in "fiub":
        raise QuantError(f"cannot quantize an array of shape {array.shape} and type {array.dtype}")
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite, and is refused
        array = np.ascontiguousarray(array, np.float32)
    return array.reshape(int(np.prod(array.shape[:-1])), array.shape[-1])


def _weights(
    importance: ArrayLike | None, kind: type[Codec], n_per_row: int, allow_nonfinite: bool
) -> NDArray[np.float32] | None:
    if importance is None:
        if kind.name in NEED_IMPORTANCE:
            raise QuantError(
                f"{kind.name} needs importances", hint="collect them with `llamapy imatrix`"
            )
        return None
    weights = np.ascontiguousarray(importance, np.float32)
    if weights.shape != (n_per_row,):
        raise QuantError(
            f"the importance has shape {weights.shape}, the rows have {n_per_row} columns"
        )
    bad = np.flatnonzero(~np.isfinite(weights))
    if bad.size and not allow_nonfinite:
        raise QuantError(f"the importance of column {bad[0]} is {weights[bad[0]]}")
    return weights


def _share(work: Callable[[int, int], None], n_rows: int, n_values: int, threads: int) -> None:
    """Call work(first row, last row) for even parts, on up to `threads` threads."""
    n_parts = max(1, min(threads, n_rows, n_values >> 14))
    if n_parts == 1:
        return work(0, n_rows)
    ends = [n_rows * i // n_parts for i in range(n_parts + 1)]
    with ThreadPoolExecutor(n_parts) as pool:
        for done in [pool.submit(work, *part) for part in zip(ends, ends[1:])]:
            done.result()
    return None


@compiled
def _size_bits(src, n):
    """The bits of the largest size among n float32; sizes order as their bits do, NaN above all."""
    most, whole = lanes.splat_i(0), n - n % 8
    for i in range(0, whole, 8):
        most = lanes.maximum(most, lanes.bits(lanes.absolute(lanes.load(src, i))))
    for i in range(whole, n):
        one = lanes.splat(mem.f32(src, i))
        most = lanes.maximum(most, lanes.bits(lanes.absolute(one)))
    return lanes.greatest(most)


def _largest(rows: NDArray[np.float32], threads: int) -> float:
    """The largest size; infinite or NaN if any number is."""
    bits: list[int] = []

    def scan(first: int, last: int) -> None:
        part = rows[first:last]
        bits.append(_size_bits(part.ctypes.data, part.size))

    _share(scan, len(rows), rows.size, threads)
    return float(np.uint32(max(bits)).view(np.float32))


def _check_sizes(rows: NDArray[np.float32], largest: float, kind: type[Codec]) -> None:
    """QuantError if a number is not finite, or so large that a search for its scale overflows."""
    if not np.isfinite(largest):
        row, column = np.unravel_index(int(np.argmax(~np.isfinite(rows))), rows.shape)
        raise QuantError(f"row {row}, column {column} is {rows[row, column]}")
    if largest > _TOO_LARGE and kind.name not in _WITHOUT_LIMIT:
        row, column = np.unravel_index(int(np.argmax(np.abs(rows) > _TOO_LARGE)), rows.shape)
        raise _too_large(row, column, rows, kind)


def _too_large(row: Any, column: Any, rows: NDArray[np.float32], kind: type[Codec]) -> QuantError:
    return QuantError(
        f"row {row}, column {column} is {rows[row, column]}: too large for {kind.name}",
        hint="bf16 and f32 hold such numbers",
    )


def _check_overflow(rows: NDArray[np.float32], out: NDArray[np.uint8], kind: type[Codec]) -> None:
    """QuantError if large weights overflowed a scale: the block is infinite, NaN or all zero."""
    for row in np.flatnonzero(np.abs(rows).max(axis=1) > _OFTEN_TOO_LARGE):
        size = np.abs(rows[row]).reshape(-1, kind.n_values).max(axis=1)
        got = np.abs(kind.dequantize(out[row].view(kind.block))).max(axis=1)
        bad = np.flatnonzero((size > _OFTEN_TOO_LARGE) & ~(np.isfinite(got) & (got > 0)))
        if bad.size:
            first = int(bad[0]) * kind.n_values
            column = first + int(np.argmax(np.abs(rows[row, first : first + kind.n_values])))
            raise _too_large(row, column, rows, kind)


def _whole_shape(shape: tuple[int, ...], n_values: int, kind: type[Codec]) -> tuple[int, ...]:
    """`shape` with its -1, if any, worked out. QuantError if it does not fit."""
    known = int(np.prod([n for n in shape if n != -1]))
    if shape.count(-1) == 1 and known and n_values % known == 0:
        shape = tuple(n_values // known if n == -1 else n for n in shape)
    if any(n < 0 for n in shape) or int(np.prod(shape)) != n_values:
        raise QuantError(f"{n_values} values of {kind.name} do not fill the shape {shape}")
    if not shape or shape[-1] % kind.n_values:
        raise QuantError(
            f"rows of shape {shape} do not divide into {kind.name} blocks of {kind.n_values}"
        )
    return shape
