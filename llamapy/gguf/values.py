"""The thirteen value types of GGUF metadata: sizes, numpy types, values to bytes and back."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np

from llamapy.core.errors import OutputError
from llamapy.gguf import limits

Scalar = bool | int | float | str
Value = Scalar | list[bool] | list[int] | list[float] | list[str]


class ValueType(IntEnum):
    """Type of a metadata value, with ggml's numbers."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12

    @property
    def short(self) -> str:
        """ggml's short name: u8, f32, str, arr, ..."""
        return _SHORT[self]

    @property
    def n_bytes(self) -> int:
        """Bytes of one value; 0 for strings and arrays."""
        return _SIZE[self]


_SHORT = ("u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "arr", "u64", "i64", "f64")
_SIZE = (1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8)
_PACK = ("B", "b", "H", "h", "I", "i", "f", "B", "", "", "Q", "q", "d")
_NUMPY = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "u1", "", "", "u8", "i8", "f8")
_FROM_NUMPY = {
    "u1": ValueType.UINT8,
    "i1": ValueType.INT8,
    "u2": ValueType.UINT16,
    "i2": ValueType.INT16,
    "u4": ValueType.UINT32,
    "i4": ValueType.INT32,
    "f4": ValueType.FLOAT32,
    "b1": ValueType.BOOL,
    "u8": ValueType.UINT64,
    "i8": ValueType.INT64,
    "f8": ValueType.FLOAT64,
}


_KEEP = "surrogateescape"  # what is not UTF-8 comes back as it was


def is_number(kind: ValueType) -> bool:
    """Whether values of this type have a fixed size (numbers and booleans)."""
    return _SIZE[kind] > 0


def dtype(kind: ValueType, endian: str) -> np.dtype[Any]:
    """numpy's type for numbers of this kind as they lie in a file. Booleans are bytes here."""
    return np.dtype(endian + _NUMPY[kind])


def to_text(raw: bytes) -> str:
    """Bytes of a file to str. What is not UTF-8 becomes lone surrogates, so nothing is lost."""
    return raw.decode("utf-8", _KEEP)


def to_bytes(text: str) -> bytes:
    """The inverse of to_text."""
    return text.encode("utf-8", _KEEP)


def unpack(kind: ValueType, raw: bytes, endian: str) -> Scalar:
    """One number or boolean from its bytes."""
    value: int | float = struct.unpack(endian + _PACK[kind], raw)[0]
    return value != 0 if kind is ValueType.BOOL else value


def unpack_array(kind: ValueType, raw: Any, endian: str) -> np.ndarray[Any, Any]:
    """Numbers or booleans from their bytes, as an array in this machine's byte order (a copy)."""
    stored = np.frombuffer(raw, dtype(kind, endian))
    native = np.dtype(bool) if kind is ValueType.BOOL else stored.dtype.newbyteorder("=")
    found: np.ndarray[Any, Any] = stored.astype(native)
    return found


def guess(value: Any) -> tuple[ValueType, ValueType | None]:
    """The type (and element type) that a Python or numpy value gets when none is named.

    A lone integer is u32 if it fits (as llama.cpp's own keys are), in an array i32 (as gguf-py
    does); larger ones take the next type that holds them. Floats are f32, an empty list is i32.
    """
    if isinstance(value, np.ndarray):
        return ValueType.ARRAY, _numpy_type(value.dtype)
    if isinstance(value, np.generic):
        return _numpy_type(value.dtype), None
    if isinstance(value, (bytes, bytearray)):
        return ValueType.ARRAY, ValueType.UINT8
    if isinstance(value, (list, tuple)):
        return ValueType.ARRAY, _guess_element(value)
    if isinstance(value, int) and not isinstance(value, bool):
        order = (ValueType.UINT32, ValueType.INT32, ValueType.INT64, ValueType.UINT64)
        return _first_that_holds(order, value, value), None
    return _guess_plain(value), None


def _guess_element(values: Sequence[Any]) -> ValueType:
    if not values:
        return ValueType.INT32
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        order = (ValueType.INT32, ValueType.UINT32, ValueType.INT64, ValueType.UINT64)
        return _first_that_holds(order, min(values), max(values))
    kinds = {_guess_plain(v) for v in values}
    if len(kinds) > 1:
        names = ", ".join(sorted(k.name for k in kinds))
        raise OutputError(f"an array cannot mix {names}")
    return kinds.pop()


def _guess_plain(value: Any) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return ValueType.INT32
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, (str, bytes)):
        return ValueType.STRING
    raise OutputError(f"a {type(value).__name__} cannot be a metadata value")


def _first_that_holds(order: Sequence[ValueType], low: int, high: int) -> ValueType:
    for kind in order:
        info = np.iinfo(_NUMPY[kind])
        if info.min <= low and high <= info.max:
            return kind
    raise OutputError(f"integer {low if low < 0 else high} does not fit in 64 bits")


def _numpy_type(kind: np.dtype[Any]) -> ValueType:
    if kind == np.float16:
        return ValueType.FLOAT32
    found = _FROM_NUMPY.get(kind.str[1:])
    if found is None:
        raise OutputError(f"a numpy {kind} cannot be a metadata value")
    return found


def encode(value: Any, kind: ValueType, element: ValueType | None, endian: str) -> bytes:
    """The bytes of a value, without its type number. OutputError if it does not fit the type.

    Text may be str or bytes. For an array, element type and count come first, as in the file.
    """
    if kind is ValueType.STRING:
        return _encode_string(value, endian)
    if kind is not ValueType.ARRAY:
        return _encode_numbers([value], kind, endian)
    if element is None or element is ValueType.ARRAY:
        raise OutputError("an array needs an element type, and that cannot be ARRAY")
    if len(value) > limits.MAX_ARRAY:
        raise OutputError(f"array of {len(value)} elements, at most {limits.MAX_ARRAY} are allowed")
    head = struct.pack(endian + "iQ", element, len(value))
    if element is ValueType.STRING:
        return head + _encode_strings(value, endian)
    return head + _encode_numbers(value, element, endian)


def _encode_strings(items: Sequence[Any], endian: str) -> bytes:
    """Strings one after the other; a vocabulary has hundreds of thousands of short ones."""
    length = struct.Struct(endian + "Q").pack
    try:
        raw = [item.encode("utf-8", _KEEP) if type(item) is str else item for item in items]
    except UnicodeEncodeError:
        raw = list(items)
    if {*map(type, raw)} != {bytes}:
        raw = [_raw(item) for item in items]
    if max(map(len, raw), default=0) > limits.MAX_STRING:
        raise _too_long(max(map(len, raw)))
    return b"".join(chain.from_iterable(zip(map(length, map(len, raw)), raw)))


def _encode_string(value: Any, endian: str) -> bytes:
    raw = _raw(value)
    if len(raw) > limits.MAX_STRING:
        raise _too_long(len(raw))
    return struct.pack(endian + "Q", len(raw)) + raw


def _too_long(n_bytes: int) -> OutputError:
    return OutputError(f"text of {n_bytes} bytes, at most {limits.MAX_STRING} are allowed")


def _raw(value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return to_bytes(value)
        except UnicodeEncodeError as error:
            raise OutputError(
                f"text {limits.shown(value)} is not Unicode: {error.reason}"
            ) from None
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise OutputError(f"a {type(value).__name__} is not text")


def _encode_numbers(values: Any, kind: ValueType, endian: str) -> bytes:
    target = dtype(kind, endian)
    if kind is ValueType.BOOL:
        return np.fromiter((bool(v) for v in values), np.uint8, len(values)).tobytes()
    if isinstance(values, np.ndarray) and np.can_cast(
        values.dtype, target.newbyteorder("="), "safe"
    ):
        return values.astype(target).tobytes()
    code = _PACK[kind]
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
            plain = [float(v) for v in plain]
        return struct.pack(f"{endian}{len(plain)}{code}", *plain)
    except (struct.error, OverflowError, TypeError, ValueError):
        bad = next((v for v in plain if not _fits(v, code)), None)
        what = limits.shown(bad) if isinstance(bad, str) else str(bad)[:80]
        raise OutputError(f"{what} does not fit in {kind.name}") from None


def _fits(value: Any, code: str) -> bool:
    try:
        struct.pack("<" + code, value)
    except (struct.error, OverflowError, TypeError):
        return False
    return True
