"""Rows of tensors of any type as float32, read piece by piece: never a whole tensor at once.

Files are read, not mapped: what is in memory is what was asked for, and a file that shrinks is an
error and not a crash.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.backend.cpu import values
from llamapy.core.errors import ModelError
from llamapy.gguf.limits import shown
from llamapy.gguf.reader import TensorInfo
from llamapy.native import Kernel, crew, mem
from llamapy.quants import codec
from llamapy.quants.codec import Codec
from llamapy.tasks.inspect import AnyFile

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

STEP = 1 << 16  # values worked on at a time: their float32 stay in a core's cache

_C_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 6)  # without the GIL


@Kernel
def rows_to_f32(src, dst, n, tables, w, b):  # type: ignore[no-untyped-def]
    """n values of whole blocks of type `w` at address `src` to float32 at `dst`."""
    values.row_to_f32(w, src, dst, n, mem.local(512), tables)


@cache
def _converter(kind: str) -> Any:
    return _C_KERNEL(rows_to_f32.address(kind))


def compiled_for(kind: type[Codec]) -> list[crew.Wanted]:
    """The compiled functions that `to_f32` calls for this type."""
    return [(rows_to_f32, (kind.name, ""))] if _is_compiled(kind) else []


def _is_compiled(kind: type[Codec]) -> bool:
    return kind.name in values.PLAIN or kind.unpack is not None


def to_f32(blocks: Bytes, kind: type[Codec], out: Floats) -> None:
    """Decode contiguous blocks to `out` [n values]; the bits are those of `kind.dequantize`."""
    if _is_compiled(kind):
        tables = codec.tables_address(kind)
        _converter(kind.name)(blocks.ctypes.data, out.ctypes.data, out.size, tables, 0, 0)
    else:
        out[:] = kind.dequantize(blocks.view(kind.block)).ravel()


class Rows:
    """The rows of one tensor: [n_rows, n_per_row], of which `by_matrix` belong to a matrix."""

    def __init__(self, file: AnyFile, info: TensorInfo) -> None:
        self.file, self.info = file, info
        self.kind = codec.get(info.type_id)
        ne = info.ne or (1,)
        self.n_per_row = ne[0]
        self.n_rows = info.n_elements // ne[0] if ne[0] else 0
        self.by_matrix = ne[1] if len(ne) > 1 else 1
        self.row_bytes = self.kind.row_bytes(ne[0])

    def raw(self, first: int, last: int) -> Bytes:
        """Rows first..last as they lie in the file, little endian: uint8, contiguous."""
        n_bytes = (last - first) * self.row_bytes
        return self.file.piece(self.info, first * self.row_bytes, n_bytes)

    def floats(self, first: int, last: int, scratch: Floats) -> Floats:
        """Rows first..last as float32 [last - first, n_per_row], in `scratch` or as they lie."""
        raw = self.raw(first, last)
        shape = (last - first, self.n_per_row)
        if self.kind.name == "f32":
            return raw.view(np.float32).reshape(shape)
        out = scratch[: shape[0] * shape[1]]
        to_f32(raw, self.kind, out)
        return out.reshape(shape)

    def step(self) -> int:
        """Rows that are worked on at a time."""
        return max(1, STEP // self.n_per_row)

    def scratch(self) -> Floats:
        """Room for the rows of a step."""
        return np.empty(self.step() * self.n_per_row, np.float32)

    def place(self, row: int, column: int | None = None) -> str:
        """Words for a row or one value: tensor, matrix if there are several, row, column."""
        matrix, row = divmod(row, self.by_matrix)
        several = f"matrix {matrix}, " if self.n_rows > self.by_matrix else ""
        value = "" if column is None else f", column {column}"
        return f"tensor {shown(self.info.name)}: {several}row {row}{value}"


def same_shape(a: TensorInfo, b: TensorInfo) -> bool:
    """Whether two tensors have the same sizes but for trailing ones."""
    longest = max(len(a.ne), len(b.ne))
    one, other = (t.ne + (1,) * (longest - len(t.ne)) for t in (a, b))
    return one == other


def open_rows(file: AnyFile, name: str) -> Rows:
    """The rows of the tensor of this name. ModelError if there is none."""
    if name not in file:
        raise ModelError(f"{file.path}: no tensor {shown(name)}")
    return Rows(file, file.tensor(name))
