"""Open a GGUF file of version 2 or 3, in either byte order, mapped or read: metadata, tensors."""

from __future__ import annotations

import mmap as mmap_module
import os
import stat
from collections.abc import Callable
from typing import Any, BinaryIO
from weakref import finalize

import numpy as np

from llamapy.core.errors import FileFormatError, ModelError
from llamapy.gguf import endian, limits
from llamapy.gguf.cursor import Cursor, NeedMore
from llamapy.gguf.header import Header, TensorInfo, TypeSizes, parse
from llamapy.gguf.limits import shown

__all__ = ["Bytes", "GGUFFile", "TensorInfo", "TypeSizes"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_FIRST_READ = (
    8 << 20
)  # bytes of an unmapped file that are read before it is known how long the header is


class GGUFFile:
    """One GGUF file, opened and checked.

    type_sizes  gives (values, bytes) of a block for a type id, None for an unknown type. Without it
                types stay unchecked, and n_bytes is the room up to the next tensor.
    lenient     collect repeated keys, empty keys and repeated tensors in `problems`, do not raise.

    FileFormatError for everything that is wrong with the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        mmap: bool = True,
        type_sizes: TypeSizes | None = None,
        lenient: bool = False,
    ) -> None:
        self.path = os.fspath(path)
        self._file: BinaryIO | None = _open(self.path)
        self._descriptor = -1
        self._end: Callable[[], object] = int  # nothing
        try:
            self.n_bytes = os.fstat(self._file.fileno()).st_size
            self._map = _map(self._file, self.n_bytes) if mmap else None
            self._bytes = None if self._map is None else np.frombuffer(self._map, np.uint8)
            header = self._read_header(type_sizes, lenient)
        except OSError as error:
            self.close()
            raise FileFormatError(self.path, error.strerror or str(error)) from None
        except BaseException:
            self.close()
            raise
        self.version, self.endian = header.version, header.endian
        self.alignment, self.data_offset = header.alignment, header.data_offset
        self.metadata, self.tensors = header.metadata, header.tensors
        self.problems = header.problems
        self._by_name: dict[str, TensorInfo] = {}
        for info in self.tensors:
            self._by_name.setdefault(info.name, info)
        self._places = {(info.offset, info.n_bytes) for info in self.tensors}
        if self._map is not None:  # which stays without the file; `read_into` wants a number only
            self._descriptor = os.dup(self._file.fileno())
            self._end = finalize(self, os.close, self._descriptor)
            self._close_file()

    def _read_header(self, type_sizes: TypeSizes | None, lenient: bool) -> Header:
        """Parse from the map, or from as many of the file's first bytes as are needed."""
        assert self._file is not None
        wanted = _FIRST_READ
        while True:
            if self._map is not None:
                buf: Any = self._map
            else:
                buf = os.pread(self._file.fileno(), min(wanted, self.n_bytes), 0)
            try:
                header = parse(Cursor(self.path, buf, self.n_bytes), type_sizes, lenient)
            except NeedMore as more:
                wanted = max(2 * wanted, more.n_bytes)
                continue
            self._refuse_joined(header)
            return header

    def _refuse_joined(self, header: Header) -> None:
        """Raise if another GGUF begins where the data ends: parts were joined with cat."""
        for end in {header.data_end, limits.padded(header.data_end, header.alignment)}:
            if end + 4 <= self.n_bytes and self._read(end, 4).tobytes() == limits.MAGIC:
                raise FileFormatError(
                    self.path,
                    "a second GGUF begins after the data of the first: parts were joined with cat",
                    field="end of data",
                    offset=end,
                    hint="keep the parts as files of their own, or merge them with a GGUF tool",
                )

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of this name. ModelError if there is none."""
        if name not in self._by_name:
            raise ModelError(f"{self.path}: no tensor {shown(name)}")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._by_name

    def raw(self, tensor: TensorInfo | str) -> Bytes:
        """The bytes of a tensor (or of its name) as stored, read-only, [n_bytes].

        A view of the map, or read now. ModelError if this file has no such tensor there.
        """
        info = self.tensor(tensor) if isinstance(tensor, str) else tensor
        if (info.offset, info.n_bytes) not in self._places:
            raise ModelError(f"{self.path}: tensor {shown(info.name)} is of another file")
        return self._read(info.offset, info.n_bytes)

    def bytes(self, tensor: TensorInfo | str) -> Bytes:
        """The bytes of a tensor (or of its name) as little-endian blocks, read-only, [n_bytes].

        Big-endian files give swapped copies; FileFormatError for types that cannot be swapped.
        """
        info = self.tensor(tensor) if isinstance(tensor, str) else tensor
        return self._little(info, self.raw(info))

    def piece(self, info: TensorInfo, start: int, n_bytes: int) -> Bytes:
        """`bytes(info)[start : start + n_bytes]` without the rest; both are whole blocks."""
        if (info.offset, info.n_bytes) not in self._places or start + n_bytes > info.n_bytes:
            raise ModelError(f"{self.path}: tensor {shown(info.name)} is of another file")
        return self._little(info, self._read(info.offset + start, n_bytes))

    def _little(self, info: TensorInfo, data: Bytes) -> Bytes:
        if self.endian == "<":
            return data
        block = endian.swappable(info.type_id)
        if block is None or data.nbytes % block.itemsize:
            raise FileFormatError(
                self.path,
                f"big-endian data of type {info.type_id} cannot be turned around",
                field=f"tensor {shown(info.name)}",
                offset=info.offset,
                hint="get a little-endian file",
            )
        swapped = endian.swap_blocks(data, block)
        swapped.flags.writeable = False
        return swapped

    def _read(self, offset: int, n_bytes: int) -> Bytes:
        if self._bytes is not None:
            return self._bytes[offset : offset + n_bytes]
        if self._file is None:
            raise FileFormatError(self.path, "read after it was closed")
        data = np.empty(n_bytes, np.uint8)
        self._read_into(offset, data)
        data.flags.writeable = False
        return data

    def read_into(self, info: TensorInfo, data: Bytes) -> None:
        """Read the blocks of a tensor, little-endian, into `data` [n_bytes]."""
        if self.endian == "<":
            self._read_into(info.offset, data)
        else:
            data[...] = self.bytes(info)

    def _read_into(self, offset: int, data: Bytes) -> None:
        number = self._descriptor if self._file is None else self._file.fileno()
        n_bytes, done = data.size, 0
        while done < n_bytes:
            try:
                got = os.preadv(number, [data[done:].data], offset + done)
            except OSError as error:
                message = f"cannot be read: {error.strerror}"
                raise FileFormatError(self.path, message, offset=offset + done) from None
            if got == 0:
                raise limits.truncated(self.path, offset + done, offset + n_bytes, field="data")
            done += got

    def close(self) -> None:
        """Let go of the file. Metadata and arrays taken from a map stay valid while held."""
        self._map = self._bytes = None
        self._close_file()
        self._end()
        self._descriptor = -1

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> GGUFFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(path: str) -> BinaryIO:
    """Open a regular file (others can neither be mapped nor measured, and might never end)."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            what = "a folder" if os.path.isdir(path) else "not a regular file"
            raise FileFormatError(path, f"is {what}")
        return open(path, "rb", buffering=0)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FileFormatError(path, f"cannot be opened: {reason}") from None


def _map(file: BinaryIO, n_bytes: int) -> mmap_module.mmap | bytes:
    if n_bytes == 0:
        return b""  # which cannot be mapped
    return mmap_module.mmap(file.fileno(), 0, access=mmap_module.ACCESS_READ)
