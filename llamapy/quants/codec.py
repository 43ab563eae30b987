"""The base of every tensor type, and the registry: one file in this folder is one type.

Knows geometry (values and bytes a block) and the two directions; not files, models or threads.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np

from llamapy.core import discover
from llamapy.core.errors import QuantError

_NOT_TYPES = ("codec", "api", "search", "rounding")
ENCODE = (int,) * 6  # kinds of the arguments of `encode`, for who loads it ahead


class Codec:
    """One tensor type. A subclass is never instantiated: it holds facts and static functions.

    Declared by the subclass line:
    `class Q4_0(Codec, name="q4_0", type_id=2, block=BLOCK, n_values=32)`.

    name      the field's spelling ("q4_K", "iq2_xxs", "f16")
    type_id   ggml's number
    block     numpy dtype of one block as it lies in the file (little endian)
    n_values  values a block; n_bytes  bytes a block
    group     values that share one scale in `unpack` (a divisor of n_values); 0 for plain numbers
    q_range   least and largest integer that `unpack` gives
    has_min   whether `unpack` gives minimums that are not all zero
    dot_with  activation layout of integer dots: "q8_0" (a scale per 32) or "q8_K" (a scale per
              256); "" for plain numbers
    unpack    compiled: unpack(block, q, s, m, tables): for the block at address `block` write
              n_values int8 at `q` in element order, and n_values / group float32 at `s` and at
              `m`, such that value = s * q - m in float32 gives the very bits of `dequantize`
              (m is written as 0 where has_min is false). None for plain numbers.
    numbers   compiled, for types of 32 values whose block begins with their scale as a half:
              numbers(block, tables) gives all in one vector u8x32, from 0 on (number - q_range[0]),
              or the bits of signed bytes where that would take 8 bits. None for the others.
    dot       compiled, for types of 256 values: dot(block, x, d, sums, tables): a vector f32x8
              whose lanes add up to the product of the block with 256 numbers. x: these as int8;
              d: their scales, a float32 each 32, then the same as int16 and, as float32 number
              12, the unit of these; sums: of the real numbers of each group (of at most 32
              values), float32.
              Faster than `unpack` and then a product; None where it is not offered.
    halves    how many halves begin such a block: 1, the scale, or 2, and what is added; 0 else
    encode    compiled: encode(src, dst, n_rows, n_per_row, importance, tables): float32 rows at
              address `src` to blocks at `dst`; `importance` is the address of n_per_row float32,
              or 0. Same bytes as ggml_quantize_chunk. What ggml aborts on (the IQ types: numbers or
              importances that are negative, not finite or too large) makes it stop and return 1 +
              the number of the row; else it returns 0 or None. None if nothing is quantized to
              the type.
    """

    name: ClassVar[str]
    type_id: ClassVar[int]
    block: ClassVar[np.dtype[Any]]
    n_values: ClassVar[int]
    n_bytes: ClassVar[int]
    group: ClassVar[int] = 0
    q_range: ClassVar[tuple[int, int]] = (0, 0)
    has_min: ClassVar[bool] = False
    dot_with: ClassVar[str] = ""
    unpack: ClassVar[Any] = None
    numbers: ClassVar[Any] = None
    dot: ClassVar[Any] = None
    halves: ClassVar[int] = 0
    encode: ClassVar[Any] = None

    def __init_subclass__(
        cls, *, name: str, type_id: int, block: Any, n_values: int = 1, **facts: Any
    ) -> None:
        cls.name, cls.type_id, cls.n_values = name, type_id, n_values
        cls.block = np.dtype(block)
        cls.n_bytes = cls.block.itemsize
        for key, value in facts.items():
            if key not in ("group", "q_range", "has_min", "dot_with", "halves"):
                raise TypeError(f"{name}: unknown fact {key!r}")
            setattr(cls, key, value)
        # A damaged file may hold infinite scales: its values are then what IEEE says, no warning.
        quiet = np.errstate(all="ignore")(cls.dequantize)
        cls.dequantize = staticmethod(quiet)  # type: ignore[method-assign]

    @staticmethod
    def dequantize(blocks: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The exact meaning, in numpy. blocks: [n] of `block` -> float32 [n, n_values]."""
        raise NotImplementedError

    @staticmethod
    def tables() -> tuple[np.ndarray[Any, Any], ...]:
        """Codebooks that the compiled functions need, in the order of their addresses there."""
        return ()

    @classmethod
    def row_bytes(cls, n_per_row: int) -> int:
        """Bytes of a row of n_per_row values. QuantError if the row does not divide into blocks."""
        if n_per_row % cls.n_values:
            raise QuantError(
                f"a row of {n_per_row} values does not divide into {cls.name} blocks"
                f" of {cls.n_values}"
            )
        return n_per_row // cls.n_values * cls.n_bytes

    @classmethod
    def bpw(cls) -> float:
        """Bits per weight."""
        return 8.0 * cls.n_bytes / cls.n_values


@cache
def registry() -> dict[str, type[Codec]]:
    """Every type: {name: class}, by type id."""
    found: dict[str, type[Codec]] = {}
    for module_name in discover.names("llamapy.quants"):
        if module_name in _NOT_TYPES:
            continue
        module = discover.load("llamapy.quants", module_name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Codec) and value is not Codec:
                found[value.name] = value
    return dict(sorted(found.items(), key=lambda item: item[1].type_id))


@cache
def _by_id() -> dict[int, type[Codec]]:
    return {codec.type_id: codec for codec in registry().values()}


@cache
def _by_lower_name() -> dict[str, type[Codec]]:
    return {codec.name.lower(): codec for codec in registry().values()}


def get(kind: str | int | type[Codec]) -> type[Codec]:
    """The type with this name (in any case) or ggml number. QuantError names the nearest."""
    if isinstance(kind, type):
        return kind
    if isinstance(kind, int):
        codec = _by_id().get(kind)
        if codec is None:
            raise QuantError(
                f"unknown tensor type {kind}", hint="known: 0 to 42 without the removed ones"
            )
        return codec
    codec = _by_lower_name().get(kind.lower())
    if codec is None:
        import difflib

        lower = _by_lower_name()
        near = [lower[n].name for n in difflib.get_close_matches(kind.lower(), lower, 3, 0.4)]
        raise QuantError(
            f"unknown tensor type {kind!r}", hint=f"did you mean {', '.join(near)}?" if near else ""
        )
    return codec


def type_sizes(type_id: int) -> tuple[int, int] | None:
    """(values, bytes) of a block of the type with this ggml number; None if there is none."""
    codec = _by_id().get(type_id)
    return None if codec is None else (codec.n_values, codec.n_bytes)


_table_addresses: dict[str, tuple[np.ndarray[Any, Any], tuple[np.ndarray[Any, Any], ...]]] = {}


def tables_address(codec: type[Codec]) -> int:
    """Address of the list of addresses of the codec's tables, for compiled code; 0 without."""
    found = _table_addresses.get(codec.name)
    if found is None:
        tables = tuple(np.ascontiguousarray(t) for t in codec.tables())
        addresses = np.array([t.ctypes.data for t in tables], np.int64)
        # Of threads that come here together the first one's arrays stay: addresses never dangle.
        found = _table_addresses.setdefault(codec.name, (addresses, tables))
    addresses = found[0]
    return int(addresses.ctypes.data) if len(addresses) else 0
