"""What a GGUF file holds, as plain data: metadata, tensors, totals, hashes. Prints nothing.

Values of metadata come as they are for programs, and as one line of text for people.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llamapy.core.errors import LlamapyError
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Entry, Metadata
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.split import SplitFile, open_split
from llamapy.gguf.values import ValueType
from llamapy.quants import codec

AnyFile = GGUFFile | SplitFile

WHOLE = 256  # longer arrays are shortened ...
FIRST = 8  # ... to so many elements
TEXT = 300  # characters of a value that a line shows
_HASH_PIECE = 8 << 20  # bytes between two reports of progress


def open_gguf(path: str | os.PathLike[str], mmap: bool = True) -> AnyFile:
    """Open a GGUF file, or the whole set that it is a part of. FileFormatError if it is bad."""
    return open_split(path, mmap=mmap, type_sizes=codec.type_sizes)


def open_lenient(path: str | os.PathLike[str], *, alone: bool = False) -> AnyFile:
    """Open a file to look at it: duplicates go to `problems`. alone: not the set around it."""
    if alone:
        return GGUFFile(path, type_sizes=codec.type_sizes, lenient=True)
    return open_split(path, type_sizes=codec.type_sizes, lenient=True)


@dataclass(frozen=True)
class Item:
    """One key-value pair. `value` of a long array is a dict of its count and first elements."""

    key: str
    type: str  # ggml's short name; of an array that of its elements, with the count
    value: Any
    text: str
    count: int = 1
    elements: list[str] | None = None  # of an array: as many as `value` has, each as text


@dataclass(frozen=True)
class TensorRow:
    """One tensor; `shape` as stored, innermost first."""

    name: str
    type: str
    shape: list[int]
    n_bytes: int
    offset: int  # in its own file
    parameters: int
    sha256: str = ""
    part: int | None = None  # number of its file, if there are several


@dataclass
class TypeTotal:
    """Sums over the tensors of one type."""

    tensors: int = 0
    parameters: int = 0
    n_bytes: int = 0


@dataclass(frozen=True)
class Report:
    """A file, taken apart."""

    path: str
    version: int
    endian: str  # "little" or "big"
    alignment: int
    data_offset: int
    file_bytes: int
    parts: int
    metadata: list[Item]
    tensors: list[TensorRow]
    by_type: dict[str, TypeTotal] = field(default_factory=dict)

    @property
    def totals(self) -> TypeTotal:
        """Sums over all tensors."""
        sums = self.by_type.values()
        return TypeTotal(
            sum(s.tensors for s in sums),
            sum(s.parameters for s in sums),
            sum(s.n_bytes for s in sums),
        )

    @property
    def bits_per_weight(self) -> float:
        """Bits of tensor data a parameter."""
        totals = self.totals
        return 8 * totals.n_bytes / totals.parameters if totals.parameters else 0.0

    def as_json(self, *, tensors: bool = True) -> dict[str, Any]:
        """The report in dicts and lists. Of a repeated key the first value counts."""
        metadata: dict[str, Any] = {}
        for item in self.metadata:
            metadata.setdefault(item.key, item.value)
        names = ("path", "version", "endian", "alignment", "data_offset", "file_bytes", "parts")
        totals = self.totals
        return {
            "file": {name: getattr(self, name) for name in names},
            "metadata": metadata,
            "tensors": [_tensor_json(row) for row in self.tensors] if tensors else [],
            "totals": {
                **vars(totals),
                "bits_per_weight": round(self.bits_per_weight, 4),
                "by_type": {name: vars(total) for name, total in self.by_type.items()},
            },
        }


def _tensor_json(row: TensorRow) -> dict[str, Any]:
    found = {key: getattr(row, key) for key in ("name", "type", "shape", "n_bytes", "offset")}
    if row.part is not None:
        found["part"] = row.part
    return found | ({"sha256": row.sha256} if row.sha256 else {})


def inspect(file: AnyFile, *, full: bool = False, hashes: list[str] | None = None) -> Report:
    """Take a file apart. full: arrays and texts whole. hashes: one a tensor, put beside it."""
    rows, by_type = [], dict[str, TypeTotal]()
    for i, info in enumerate(file.tensors):
        kind = type_name(info.type_id)
        rows.append(
            TensorRow(
                name=info.name,
                type=kind,
                shape=list(info.ne),
                n_bytes=info.n_bytes,
                offset=info.offset,
                parameters=info.n_elements,
                sha256=hashes[i] if hashes else "",
                part=info.part if isinstance(file, SplitFile) else None,
            )
        )
        total = by_type.setdefault(kind, TypeTotal())
        total.tensors += 1
        total.parameters += info.n_elements
        total.n_bytes += info.n_bytes
    return Report(
        path=file.path,
        version=file.version,
        endian="little" if file.endian == "<" else "big",
        alignment=file.alignment,
        data_offset=file.data_offset,
        file_bytes=file.n_bytes,
        parts=len(file.parts) if isinstance(file, SplitFile) else 1,
        metadata=[item(file.metadata, entry, full=full) for entry in file.metadata.entries],
        tensors=rows,
        by_type=dict(sorted(by_type.items(), key=lambda named: -named[1].n_bytes)),
    )


def type_name(type_id: int) -> str:
    """ggml's name of a tensor type."""
    return codec.get(type_id).name


def item(metadata: Metadata, entry: Entry, *, full: bool = False) -> Item:
    """One pair of a file, decoded as far as it is shown."""
    kind = entry.kind.short
    if entry.element is None:
        lone = metadata.value(entry)
        return Item(entry.key, kind, lone, _cut(_text(lone, entry.kind), full))
    short = not full and entry.count > WHOLE
    elements = metadata.value(entry, FIRST if short else None)
    assert isinstance(elements, list)
    texts = [_text(element, entry.element, quoted=True) for element in elements]
    text = "[" + ", ".join(texts) + (", ...]" if short else "]")
    value = {"type": entry.element.short, "count": entry.count, "first": elements}
    kind = f"{entry.element.short}[{entry.count}]"
    shown_value = value if short else elements
    return Item(entry.key, kind, shown_value, _cut(text, full), entry.count, texts)


def find(file: AnyFile, key: str, *, full: bool = False) -> Item:
    """The pair of this key. LlamapyError, with near names, if there is none."""
    if key not in file.metadata:
        import difflib

        near = difflib.get_close_matches(key, list(file.metadata), 3)
        hint = f"did you mean {' or '.join(near)}?" if near else "dump without --kv lists all keys"
        raise LlamapyError(f"{file.path}: no key {shown(key)}", hint=hint)
    return item(file.metadata, file.metadata.entry(key), full=full)


def _text(value: Any, kind: ValueType, *, quoted: bool = False) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False) if quoted else value
    if isinstance(value, bool):
        return str(value).lower()
    if kind is ValueType.FLOAT32:
        return str(np.float32(value))  # the shortest text that means the same 32 bits
    return str(value)


def _cut(text: str, full: bool) -> str:
    if full or len(text) <= TEXT:
        return text
    return f"{text[:TEXT]}... ({len(text)} characters)"


def hash_tensors(file: AnyFile, on_done: Callable[[int], None] | None = None) -> list[str]:
    """SHA-256 of every tensor's bytes as stored, in hexadecimal. on_done: told the bytes so far."""
    import hashlib

    found, done = [], 0
    for info in file.tensors:
        digest = hashlib.sha256()
        data = file.raw(info)
        for start in range(0, info.n_bytes, _HASH_PIECE):
            piece = data[start : start + _HASH_PIECE]
            digest.update(piece.data)
            done += piece.nbytes
            if on_done is not None:
                on_done(done)
        found.append(digest.hexdigest())
    return found
