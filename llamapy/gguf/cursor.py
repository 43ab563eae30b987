"""A place in a file's bytes: reads are checked first, failures name file, field and byte offset."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from llamapy.core.errors import FileFormatError
from llamapy.gguf import limits


class NeedMore(Exception):
    """The file goes on, but not the part that is in memory: read `n_bytes` and start again."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class Cursor:
    """Reads numbers and strings in turn from `buf`, the first bytes of a file of `size` bytes."""

    __slots__ = ("path", "buf", "size", "pos", "endian")

    def __init__(self, path: str, buf: Any, size: int) -> None:
        self.path, self.buf, self.size = path, buf, size
        self.pos = 0
        self.endian = "<"

    @property
    def left(self) -> int:
        """Bytes between here and the end of the file."""
        return self.size - self.pos

    def fail(self, message: str, field: str, at: int | None = None) -> FileFormatError:
        """An error about `field`, at byte `at` or here. To be raised by the caller."""
        return FileFormatError(
            self.path, message, field=field, offset=self.pos if at is None else at
        )

    def need(self, n_bytes: int, field: str) -> None:
        """Make sure that n_bytes can be read here."""
        end = self.pos + n_bytes
        if end > self.size:
            raise limits.truncated(self.path, self.size, end, field=field, offset=self.pos)
        if end > len(self.buf):
            raise NeedMore(end)

    def number(self, code: str, field: str) -> int:
        """One integer in the file's byte order; `code` as in `struct`."""
        n_bytes = struct.calcsize("<" + code)
        self.need(n_bytes, field)
        value: int = struct.unpack_from(self.endian + code, self.buf, self.pos)[0]
        self.pos += n_bytes
        return value

    def take(self, n_bytes: int, field: str) -> bytes:
        """The next n_bytes."""
        self.need(n_bytes, field)
        raw = bytes(self.buf[self.pos : self.pos + n_bytes])
        self.pos += n_bytes
        return raw

    def string(self, field: str) -> bytes:
        """A string: its length, then its bytes."""
        at = self.pos
        length = self.number("Q", field)
        if length > limits.MAX_STRING:
            raise self.fail(f"string length {length} exceeds {limits.MAX_STRING}", field, at)
        if length > self.left:
            raise limits.truncated(
                self.path,
                self.size,
                self.pos + length,
                field=f"{field} (a string of {length} bytes)",
                offset=at,
            )
        return self.take(length, field)

    def count(self, field: str, n_min: int) -> int:
        """A count of things of at least n_min bytes each, all of which must fit in what is left."""
        at = self.pos
        count = self.number("Q", field)
        if count * n_min > self.left:
            raise limits.truncated(
                self.path, self.size, self.pos + count * n_min, field=f"{field} {count}", offset=at
            )
        return count

    def strings(self, count: int, field: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Step over `count` strings. [count + 1]: where their lengths lie, and where the last ends.

        One struct call a string and no check, since `struct` itself refuses to read past the end;
        the checks are made afterwards on all at once, and only a bad file is walked a second time.
        """
        read = struct.Struct(self.endian + "Q").unpack_from
        buf, pos = self.buf, self.pos
        starts = []
        try:
            for _ in range(count):
                starts.append(pos)
                pos += 8 + read(buf, pos)[0]
        except (struct.error, OverflowError):
            pos = self.size + 1
        if pos > len(buf) < self.size:
            raise NeedMore(2 * len(buf))
        starts.append(pos)
        if pos > self.size:
            raise self._bad_string(count, field)
        found = np.array(starts, np.int64)
        if count and int(np.diff(found).max()) - 8 > limits.MAX_STRING:
            raise self._bad_string(count, field)
        self.pos = pos
        return found

    def _bad_string(self, count: int, field: str) -> FileFormatError:
        """The error of the first string that cannot be read."""
        try:
            for i in range(count):
                self.string(f"{field}[{i}]")
        except FileFormatError as error:
            return error
        return self.fail("strings run past the end", field)
