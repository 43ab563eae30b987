"""Weights that must not be quantized: not a number, infinite, or too large for a type's scale.

All tensors are looked through before the first byte of the output is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from llamapy.core.errors import QuantError
from llamapy.quants.codec import Codec
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.quantize_plan import Planned
from llamapy.tasks.rows import Bytes, Floats, Rows

LARGE = 1024.0  # from here on blocks are looked at after they are made: a scale may overflow
_TOO_LARGE = 2.0**30  # no block with half-precision scales holds this; the search would overflow
_WITHOUT_HALVES = frozenset({"f32", "bf16", "mxfp4", "nvfp4"})

_PIECE = 4 << 20  # bytes looked at at a time
_SIGNS = {"f32": ("<i4", "<u4", 0x7FFFFFFF), "f16": ("<i2", "<u2", 0x7FFF)}
_SIGNS["bf16"] = _SIGNS["f16"]


def largest(raw: Bytes, kind: type[Codec]) -> float:
    """The largest size among the values of whole blocks; infinite or NaN if any is not finite.

    Of quantized types only whether all values are finite is told (0 or infinite).
    """
    if not raw.size:
        return 0.0
    if kind.name in _SIGNS:
        signed, unsigned, mask = _SIGNS[kind.name]
        # Sizes order as their bits do: the largest is the largest positive one as a signed number,
        # or the largest negative one as an unsigned number.
        positive = int(raw.view(signed).max())
        bits = max(
            positive, 0, int(raw.view(unsigned).max()) & mask if _any_negative(raw, signed) else 0
        )
        return _from_bits(bits, kind)
    names = [n for n in kind.block.names or () if kind.block[n].base == np.dtype("<f2")]
    blocks = raw.view(kind.block)
    if names:
        finite = all(np.isfinite(blocks[name]).all() for name in names)
    elif kind.unpack is not None or kind.block.kind == "f":
        finite = bool(np.isfinite(kind.dequantize(blocks)).all())
    else:
        return 0.0  # integers
    return 0.0 if finite else float("inf")


def _any_negative(raw: Bytes, signed: str) -> bool:
    return int(raw.view(signed).min()) < 0


def _from_bits(bits: int, kind: type[Codec]) -> float:
    if kind.name == "f16":
        return float(np.uint16(bits).view(np.float16))
    return float(np.uint32(bits << 16 if kind.name == "bf16" else bits).view(np.float32))


def check_inputs(
    file: AnyFile,
    tensors: Sequence[Planned],
    threads: int,
    *,
    allow_nonfinite: bool = False,
    warnings: list[str] | None = None,
    on_done: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """Look through all tensors; the largest size in each, by its name in the input.

    QuantError names tensor, row and column of the first value that is not finite or that its new
    type cannot hold; with `allow_nonfinite` these become `warnings`.
    """
    found: dict[str, float] = {}
    done = 0
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for one, sizes in zip(tensors, pool.map(lambda one: _sizes(file, one), tensors)):
            found[one.info.name] = float(max(sizes, default=0.0, key=lambda s: (s != s, s)))
            done += one.info.n_bytes
            if on_done is not None:
                on_done(done)
            fault = _fault(file, one, sizes)
            if fault and not allow_nonfinite:
                raise QuantError(
                    f"{file.path}: {fault}", hint="--allow-nonfinite goes on all the same"
                )
            if fault and warnings is not None:
                warnings.append(fault)
    return found


def _ranges(rows: Rows) -> list[tuple[int, int]]:
    step = max(1, _PIECE // max(rows.row_bytes, 1))
    return [(at, min(at + step, rows.n_rows)) for at in range(0, rows.n_rows, step)]


def _sizes(file: AnyFile, one: Planned) -> list[float]:
    """The largest size in each piece."""
    rows = Rows(file, one.info)
    return [largest(rows.raw(*piece), rows.kind) for piece in _ranges(rows)]


def _fault(file: AnyFile, one: Planned, sizes: Sequence[float]) -> str:
    """What is wrong with the first bad value; empty if none is."""
    limit = _TOO_LARGE if one.changes and one.kind not in _WITHOUT_HALVES else np.inf
    rows = Rows(file, one.info)
    for piece, size in zip(_ranges(rows), sizes):
        if size < limit:
            continue
        shape = (-1, rows.n_per_row)
        values = rows.kind.dequantize(rows.raw(*piece).view(rows.kind.block)).reshape(shape)
        with np.errstate(invalid="ignore"):
            bad = ~(np.abs(values) < limit)
        if bad.any():
            i, j = divmod(int(np.argmax(bad)), bad.shape[1])
            return _words(rows, piece[0] + i, j, float(values[i, j]), one.kind)
    return ""


def _words(rows: Rows, row: int, column: int, value: float, kind: str) -> str:
    place = f"{rows.place(row, column)} is {value}"
    return f"{place}: too large for {kind}" if np.isfinite(value) else place


def check_blocks(rows: Rows, first: int, values: Floats, out: Bytes, kind: type[Codec]) -> str:
    """What is wrong if large values overflowed the scale of a block: it is then infinite or zero.

    values [n, n_per_row] are the rows from `first`, out [n, row_bytes] what was made of them.
    """
    if kind.n_values == 1:
        if kind.name == "f16" and (np.abs(values) > 65504).any():
            row, column = divmod(int(np.argmax(np.abs(values) > 65504)), values.shape[1])
            return _words(rows, first + row, column, float(values[row, column]), kind.name)
        return ""
    for i in np.flatnonzero(np.abs(values).max(axis=1) > LARGE):
        size = np.abs(values[i]).reshape(-1, kind.n_values)
        got = np.abs(kind.dequantize(out[i].view(kind.block))).max(axis=1)
        bad = np.flatnonzero((size.max(axis=1) > LARGE) & ~(np.isfinite(got) & (got > 0)))
        if bad.size:
            block = int(bad[0])
            column = block * kind.n_values + int(np.argmax(size[block]))
            return _words(rows, first + int(i), column, float(values[i, column]), kind.name)
    return ""
