"""Safetensors files: the header checked against the file, tensors read in pieces of rows.

Format: https://github.com/huggingface/safetensors (an 8-byte length, a JSON header, data). Files
are read, not mapped, so that memory is what is asked for. Knows nothing of models.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from llamapy.convert import halves
from llamapy.core.errors import FileFormatError
from llamapy.gguf.limits import shown

Array = np.ndarray[Any, Any]

MAX_HEADER = 100_000_000  # bytes; the limit of the format's own library

# numpy's type of what lies in the file; those that numpy lacks are unsigned integers of their size
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "F8_E4M3": "u1",
    "F8_E5M2": "u1",
    "F8_E8M0": "u1",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "u1",
}
LFS = b"version https://git-lfs"


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: type by the format's name, shape outermost first, place in the file."""

    path: str
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int

    @property
    def n_rows(self) -> int:
        """Rows if all but the last axis count; 1 for vectors and scalars."""
        return prod(self.shape[:-1])

    def read(self, first: int = 0, last: int | None = None) -> Array:
        """Rows first..last as they are stored, [rows, shape[-1]]; all of them in `shape`."""
        kind = np.dtype(DTYPES[self.dtype])
        n_rows, width = self.n_rows, self.shape[-1] if self.shape else 1
        end = n_rows if last is None else last
        out = np.empty((end - first) * width, kind)
        start = self.offset + first * width * kind.itemsize
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                _fill(file, out.data.cast("B"))
        except OSError as error:
            raise FileFormatError(self.path, f"cannot be read: {error.strerror}") from None
        except EOFError:
            message = "truncated while it was read"
            raise FileFormatError(self.path, message, field=self.name, offset=start) from None
        whole = first == 0 and end == n_rows
        return out.reshape(self.shape if whole else (end - first, width))


def _fill(file: Any, room: memoryview) -> None:
    done = 0
    while done < len(room):
        n = file.readinto(room[done : done + (1 << 26)])
        if not n:
            raise EOFError
        done += n


def tensors(path: str | os.PathLike[str]) -> dict[str, Stored]:
    """The tensors of a file, sorted by name. FileFormatError for a header that cannot be true."""
    name = os.fspath(path)
    try:
        size = os.path.getsize(name)
        with open(name, "rb") as file:
            head = file.read(8)
            header = _header(name, size, head, file)
    except OSError as error:
        raise FileFormatError(name, f"cannot be read: {error.strerror}") from None
    start = 8 + int.from_bytes(head, "little")
    found: dict[str, Stored] = {}
    for key in sorted(header):
        if key != "__metadata__":
            found[key] = _tensor(name, key, header[key], start, size)
    _check_overlap(name, found)
    return found


def _header(path: str, size: int, head: bytes, file: Any) -> dict[str, Any]:
    if len(head) < 8:
        raise FileFormatError(path, f"truncated: has {size} bytes, a header needs 8", offset=0)
    if head == LFS[:8]:
        raise FileFormatError(
            path, "is a git-lfs pointer, not the file itself", hint="run `git lfs pull`"
        )
    length = int.from_bytes(head, "little")
    if length > MAX_HEADER or 8 + length > size:
        message = f"the header has {length} bytes, the file {size}"
        raise FileFormatError(path, message, field="header length", offset=0)
    try:
        header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0][:200]
        raise FileFormatError(path, f"not JSON: {reason}", field="header", offset=8) from None
    if not isinstance(header, dict):
        raise FileFormatError(path, "not a JSON object", field="header", offset=8)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"{shown(twice)} is there twice")
    return found


def _tensor(path: str, name: str, facts: Any, start: int, size: int) -> Stored:
    field = f"tensor {shown(name)}"

    def fault(message: str, offset: int | None = 8) -> FileFormatError:
        return FileFormatError(path, message, field=field, offset=offset)

    if not isinstance(facts, dict):
        raise fault("is described by no JSON object")
    dtype = facts.get("dtype")
    shape: Any = facts.get("shape")
    place: Any = facts.get("data_offsets")
    if dtype not in DTYPES:
        raise fault(f"has type {shown(str(dtype))}, known are {', '.join(DTYPES)}")
    if not _is_sizes(shape) or len(shape) > 8:
        raise fault(f"has shape {str(shape)[:80]}")
    if not _is_sizes(place) or len(place) != 2:
        raise fault(f"has data_offsets {str(place)[:80]}")
    first, last = place
    need = prod(shape) * np.dtype(DTYPES[dtype]).itemsize
    if last - first != need:
        raise fault(f"needs {need} bytes for {dtype} {shape}, data_offsets give {last - first}")
    if start + last > size:
        message = f"truncated: ends at byte {start + last}, the file has {size}"
        raise fault(message, start + first)
    return Stored(path, name, dtype, tuple(shape), start + first, need)


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 1 << 63 for n in value
    )


def _check_overlap(path: str, found: dict[str, Stored]) -> None:
    last_end, before = 0, ""
    for one in sorted(found.values(), key=lambda t: (t.offset, t.n_bytes)):
        if one.offset < last_end and one.n_bytes:
            message = f"overlaps {shown(before)}"
            raise FileFormatError(
                path, message, field=f"tensor {shown(one.name)}", offset=one.offset
            )
        if one.n_bytes:
            last_end, before = one.offset + one.n_bytes, one.name


# -- values


def to_floats(array: Array, dtype: str) -> Array:
    """Stored values as float32; float16 and float32 stay as they are."""
    if dtype in ("F16", "F32"):
        return array
    if dtype == "BF16":
        return halves.singles(array)
    if dtype in _EIGHT_BITS:
        return _EIGHT_BITS[dtype][array]
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _eight_bits(n_exponent: int, n_mantissa: int, bias: int, finite: bool) -> Array:
    """The values of all bytes of an 8-bit float. Formats: OCP 8-bit floating point, OFP8."""
    code = np.arange(256)
    exponent = (code >> n_mantissa) & ((1 << n_exponent) - 1)
    mantissa = code & ((1 << n_mantissa) - 1)
    scale = 1 << n_mantissa
    with np.errstate(all="ignore"):
        value = np.where(
            exponent == 0,
            mantissa / scale * 2.0 ** (1 - bias),
            (1 + mantissa / scale) * 2.0 ** (exponent - bias),
        )
    top = exponent == (1 << n_exponent) - 1
    if finite:  # only all ones is no number
        value = np.where(top & (mantissa == scale - 1), np.nan, value)
    else:
        value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
    return np.where(code >= 128, -value, value).astype(np.float32)


_EIGHT_BITS = {
    "F8_E4M3": _eight_bits(4, 3, 7, finite=True),
    "F8_E5M2": _eight_bits(5, 2, 15, finite=False),
    "F8_E8M0": np.array([2.0 ** (e - 127) for e in range(255)] + [np.nan], np.float32),
}
