"""Write a GGUF file: say what is in it, then stream the tensors through one at a time.

The bytes are those of gguf-py's GGUFWriter for the same calls, and of llama.cpp's own writer
(ggml/src/gguf.cpp) when `trim_dims` drops trailing dimensions of one.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np

from llamapy.core.errors import OutputError
from llamapy.gguf import keys, limits, values
from llamapy.gguf.header import TensorInfo
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.output import Path, PendingFiles
from llamapy.gguf.values import ValueType

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]
Item = Buffer | Iterable[Buffer]  # one tensor's bytes, whole or in pieces
Source = Callable[[str], Item] | Iterable[Item]  # asked by tensor name, or in order


@dataclass(frozen=True, slots=True)
class Field:
    """An encoded key-value pair: everything after the key, as it goes into the file."""

    key: str
    kind: ValueType
    payload: bytes  # of an array with element type and count

    def encoded(self, endian: str) -> bytes:
        """The whole pair."""
        name = values.to_bytes(self.key)
        head = struct.pack(f"{endian}Q", len(name)) + name
        return head + struct.pack(f"{endian}i", self.kind) + self.payload


@dataclass(frozen=True, slots=True)
class Layout:
    """What one file holds: header bytes and tensors with absolute offsets."""

    header: bytes
    tensors: list[TensorInfo]
    n_bytes: int


class GGUFWriter:
    """Collects metadata and tensors, then writes them all.

    alignment  of tensor data; another than 32 is also stored as general.alignment
    endian     '<' or '>': byte order of everything, tensor data included (the source must deliver
               it in that order)
    trim_dims  drop trailing dimensions of 1, as llama.cpp does

    OutputError for duplicates, values that do not fit and names or shapes no reader would accept.
    """

    def __init__(
        self,
        path: Path,
        *,
        alignment: int = limits.DEFAULT_ALIGNMENT,
        endian: str = "<",
        version: int = limits.VERSION,
        trim_dims: bool = False,
    ) -> None:
        if version not in limits.VERSIONS or endian not in ("<", ">"):
            raise OutputError(f"cannot write GGUF version {version} with byte order {endian!r}")
        if version < 3 and endian == ">":
            raise OutputError("big-endian files need GGUF version 3")
        self.path = os.fspath(path)
        self.endian, self.version, self.trim_dims = endian, version, trim_dims
        self.alignment = self._check_alignment(alignment)
        self.fields: dict[str, Field] = {}
        self.tensors: list[TensorInfo] = []  # offsets are 0 until the layout is made
        self._names: set[str] = set()

    def add(
        self,
        key: str,
        value: Any,
        kind: ValueType | None = None,
        element: ValueType | None = None,
    ) -> None:
        """Add a value. Types not given are guessed (values.guess); a repeated key is an error."""
        if kind is None:
            kind, guessed = values.guess(value)
            element = element if element is not None else guessed
        elif kind is ValueType.ARRAY and element is None:
            element = values.guess(value)[1]
        try:
            payload = values.encode(value, kind, element, self.endian)
        except OutputError as error:
            raise OutputError(f"{self.path}: key {shown(key)}: {error.message}") from None
        self._add_field(Field(key, kind, payload))
        if key == keys.ALIGNMENT:
            self._adopt_alignment(value, kind)

    def replace(
        self,
        key: str,
        value: Any,
        kind: ValueType | None = None,
        element: ValueType | None = None,
    ) -> None:
        """Add a value in place of an earlier one; the key moves to the end, as in llama.cpp."""
        self.fields.pop(key, None)
        self.add(key, value, kind, element)

    def add_all(self, metadata: Metadata, *, skip: Iterable[str] = ()) -> None:
        """Add every pair of a file, bit by bit (text that is not UTF-8 and NaNs survive)."""
        left_out = set(skip)
        for key in metadata:
            if key in left_out:
                continue
            kind, _ = metadata.type(key)
            self._add_field(Field(key, kind, metadata.payload(key, self.endian)))
            if key == keys.ALIGNMENT:
                self._adopt_alignment(metadata[key], kind)

    def _add_field(self, field: Field) -> None:
        if not field.key:
            raise OutputError(f"{self.path}: a key is empty")
        if field.key in self.fields:
            raise OutputError(f"{self.path}: duplicate key {shown(field.key)}")
        self.fields[field.key] = field

    def _check_alignment(self, value: Any) -> int:
        fault = limits.alignment_fault(value)
        if fault:
            raise OutputError(f"{self.path}: {fault}")
        return int(value)

    def _adopt_alignment(self, value: Any, kind: ValueType) -> None:
        if kind is not ValueType.UINT32:
            raise OutputError(f"{self.path}: {keys.ALIGNMENT} must be UINT32, not {kind.name}")
        self.alignment = self._check_alignment(value)

    def add_tensor(self, name: str, ne: Sequence[int], type_id: int, n_bytes: int) -> None:
        """Announce a tensor: sizes innermost first, type number, and bytes of its data."""
        field = f"{self.path}: tensor {shown(name)}"
        if len(values.to_bytes(name)) > limits.MAX_NAME:
            raise OutputError(f"{field}: the name has more than {limits.MAX_NAME} bytes")
        if name in self._names:
            raise OutputError(f"{field}: duplicate name")
        shape = tuple(int(n) for n in ne)
        if len(shape) > limits.MAX_DIMS:
            raise OutputError(f"{field}: {len(shape)} dimensions, at most {limits.MAX_DIMS}")
        fault = limits.shape_fault(shape)
        if fault:
            raise OutputError(f"{field}: {fault}")
        self._names.add(name)
        self.tensors.append(TensorInfo(name, self._trimmed(shape), type_id, 0, int(n_bytes)))

    def _trimmed(self, ne: tuple[int, ...]) -> tuple[int, ...]:
        while self.trim_dims and len(ne) > 1 and ne[-1] == 1:
            ne = ne[:-1]
        return ne

    def layout(
        self,
        fields: Sequence[Field] | None = None,
        tensors: Sequence[TensorInfo] | None = None,
    ) -> Layout:
        """Header and places of a file with these fields and tensors; by default with all."""
        fields = self._all_fields() if fields is None else fields
        tensors = self.tensors if tensors is None else tensors
        e = self.endian
        parts = [limits.MAGIC, struct.pack(e + "IQQ", self.version, len(tensors), len(fields))]
        parts += [field.encoded(e) for field in fields]
        offset, offsets = 0, []
        for info in tensors:
            name = values.to_bytes(info.name)
            parts.append(struct.pack(e + "Q", len(name)) + name)
            parts.append(struct.pack(f"{e}I{len(info.ne)}q", len(info.ne), *info.ne))
            parts.append(struct.pack(e + "iQ", info.type_id, offset))
            offsets.append(offset)
            offset += limits.padded(info.n_bytes, self.alignment)
        header = b"".join(parts)
        header += bytes(limits.padded(len(header), self.alignment) - len(header))
        placed = [
            TensorInfo(t.name, t.ne, t.type_id, len(header) + start, t.n_bytes)
            for t, start in zip(tensors, offsets)
        ]
        return Layout(header, placed, len(header) + offset)

    def _all_fields(self) -> list[Field]:
        fields = list(self.fields.values())
        if self.alignment != limits.DEFAULT_ALIGNMENT and keys.ALIGNMENT not in self.fields:
            fields.append(self.alignment_field())
        return fields

    def alignment_field(self) -> Field:
        """general.alignment, for files whose data are not aligned to 32."""
        return Field(
            keys.ALIGNMENT, ValueType.UINT32, struct.pack(self.endian + "I", self.alignment)
        )

    def write(
        self,
        source: Source = (),
        *,
        inputs: Iterable[Path] = (),
        overwrite: bool = True,
        on_done: Callable[[int], None] | None = None,
    ) -> None:
        """Write the file. Nothing appears at `path` before it is complete and on the disk.

        source    gives the bytes of each tensor in order, whole or as pieces: a function of its
                  name (`file.bytes` of an open file is one), or an iterable, one item a tensor
        inputs    files that must not be overwritten
        on_done   told after each piece how many bytes of tensor data are written by now
        """
        layout = self.layout()
        targets = [(self.path, layout.n_bytes)]
        items = counted(items_of(source, layout.tensors), on_done)
        with (
            PendingFiles(targets, inputs=inputs, overwrite=overwrite) as pending,
            pending.open(0) as file,
        ):
            self.write_file(file, layout, items)

    def write_file(
        self, file: BinaryIO, layout: Layout, items: Iterator[Iterator[memoryview]]
    ) -> None:
        """Write one laid-out file; takes as many items as it has tensors."""
        file.write(layout.header)
        for info in layout.tensors:
            done = 0
            for piece in next(items):
                file.write(piece)
                done += piece.nbytes
            if done != info.n_bytes:
                raise OutputError(
                    f"{self.path}: tensor {shown(info.name)} got {done} bytes, not {info.n_bytes}"
                )
            file.write(bytes(limits.padded(done, self.alignment) - done))


def items_of(source: Source, tensors: Sequence[TensorInfo]) -> Iterator[Item]:
    """One item a tensor, made when it is asked for. OutputError if the source has too few."""
    if callable(source):
        for info in tensors:
            yield source(info.name)
        return
    given = iter(source)
    for info in tensors:
        try:
            yield next(given)
        except StopIteration:
            raise OutputError(f"no data for tensor {shown(info.name)}") from None


def counted(
    items: Iterator[Item], on_done: Callable[[int], None] | None
) -> Iterator[Iterator[memoryview]]:
    """Every item as its buffers; on_done learns the bytes handed out so far."""
    done = 0

    def counting(item: Item) -> Iterator[memoryview]:
        nonlocal done
        for piece in _pieces(item):
            yield piece
            done += piece.nbytes
            if on_done is not None:
                on_done(done)

    for item in items:
        yield counting(item)


def _pieces(item: Item) -> Iterator[memoryview]:
    """The item's buffers, each contiguous."""
    if isinstance(item, np.ndarray):
        yield np.ascontiguousarray(item).data
    elif isinstance(item, (bytes, bytearray, memoryview)):
        yield memoryview(item)
    else:
        for piece in item:
            yield from _pieces(piece)
