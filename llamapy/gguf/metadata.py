"""The key-value pairs of a file: a mapping that knows where values lie and decodes on request."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llamapy.core.errors import LlamapyError
from llamapy.gguf import values
from llamapy.gguf.limits import shown
from llamapy.gguf.values import Value, ValueType


@dataclass(frozen=True, slots=True)
class Entry:
    """One pair as it lies in the file: the value is start..end, array elements begin at `data`."""

    key: str
    kind: ValueType
    element: ValueType | None  # of an array
    count: int  # elements of an array, else 1
    start: int
    data: int
    end: int
    strings: np.ndarray[Any, np.dtype[np.int64]] | None = (
        None  # starts of an array's strings, and the end
    )


class Metadata(Mapping[str, Value]):
    """Read-only mapping of keys to Python values, in the file's order.

    Text that is not valid UTF-8 has lone surrogates in it (values.to_text), see raw_strings.
    Lists are decoded anew at each access: keep them if they are large.
    """

    def __init__(self, buf: Any, entries: Sequence[Entry], endian: str) -> None:
        self._buf = buf
        self.entries = list(entries)  # all of them, with repeated keys
        self.endian = endian
        self._by_key: dict[str, Entry] = {}
        for entry in self.entries:
            self._by_key.setdefault(entry.key, entry)

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_key)

    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    def __getitem__(self, key: str) -> Value:
        return self.value(self._by_key[key])

    def entry(self, key: str) -> Entry:
        """Where and what the value of `key` is. KeyError if there is none."""
        return self._by_key[key]

    def type(self, key: str) -> tuple[ValueType, ValueType | None]:
        """The value's type, and the element type if it is an array."""
        entry = self._by_key[key]
        return entry.kind, entry.element

    def count(self, key: str) -> int:
        """Elements of an array without decoding it; 1 for anything else."""
        return self._by_key[key].count

    def value(self, entry: Entry, limit: int | None = None) -> Value:
        """The decoded value of an entry; of an array only the first `limit` elements."""
        if entry.kind is ValueType.STRING:
            return values.to_text(self._string(entry.start))
        if entry.element is None:
            return values.unpack(entry.kind, self._slice(entry.start, entry.end), self.endian)
        if entry.element is ValueType.STRING:
            return [values.to_text(raw) for raw in self._strings(entry, limit)]
        numbers: list[int] = self._numbers(entry, limit).tolist()
        return numbers

    def payload(self, key: str, endian: str) -> bytes:
        """The value's bytes as a file of this byte order has them, bit by bit the same value.

        Of an array with its element type and count.
        """
        entry = self._by_key[key]
        if endian == self.endian:
            return self._slice(entry.start, entry.end)
        if entry.kind is ValueType.STRING:
            return values.encode(self._string(entry.start), entry.kind, None, endian)
        if entry.element is None:
            return self._slice(entry.start, entry.end)[::-1]
        if entry.element is ValueType.STRING:
            return values.encode(self._strings(entry, None), entry.kind, entry.element, endian)
        stored = values.dtype(entry.element, endian)
        swapped = np.frombuffer(self._slice(entry.data, entry.end), stored).byteswap()
        head = struct.pack(endian + "iQ", entry.element, entry.count)
        return head + swapped.tobytes()

    def raw_strings(self, key: str) -> list[bytes]:
        """The bytes of an array of strings, valid UTF-8 or not. LlamapyError if it is not one."""
        entry = self._by_key[key]
        if entry.element is not ValueType.STRING:
            raise self._wrong(entry, "an array of strings")
        return self._strings(entry, None)

    def array(self, key: str) -> np.ndarray[Any, Any]:
        """An array of numbers or booleans, [count], in native order. LlamapyError if not one."""
        entry = self._by_key[key]
        if entry.element in (None, ValueType.STRING):
            raise self._wrong(entry, "an array of numbers")
        return self._numbers(entry, None)

    def _wrong(self, entry: Entry, wanted: str) -> LlamapyError:
        got = f"an array of {entry.element.name}" if entry.element is not None else entry.kind.name
        return LlamapyError(f"key {shown(entry.key)} is {got}, not {wanted}")

    def _slice(self, start: int, end: int) -> bytes:
        return bytes(self._buf[start:end])

    def _string(self, start: int) -> bytes:
        length = int.from_bytes(self._buf[start : start + 8], _ORDER[self.endian])
        return self._slice(start + 8, start + 8 + length)

    def _strings(self, entry: Entry, limit: int | None) -> list[bytes]:
        assert entry.strings is not None
        count = entry.count if limit is None else min(limit, entry.count)
        bounds = entry.strings[: count + 1].tolist()
        first = bounds[0]
        block = self._slice(first, bounds[-1])  # one copy, then cheap slices
        return [block[a - first + 8 : b - first] for a, b in zip(bounds, bounds[1:])]

    def _numbers(self, entry: Entry, limit: int | None) -> np.ndarray[Any, Any]:
        assert entry.element is not None
        count = entry.count if limit is None else min(limit, entry.count)
        raw = self._slice(entry.data, entry.data + count * entry.element.n_bytes)
        return values.unpack_array(entry.element, raw, self.endian)


_ORDER: dict[str, Any] = {"<": "little", ">": "big"}
