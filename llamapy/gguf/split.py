"""Sets of files that hold one model: open them through any part, and write them.

What counts is what the files say of themselves (split.no, split.count, split.tensors.count); names
only lead to the other parts. Rules and key order: llama.cpp tools/gguf-split, and gguf-py.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from llamapy.core.errors import FileFormatError, ModelError, UsageError
from llamapy.gguf import keys, limits
from llamapy.gguf.header import TensorInfo, TypeSizes
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.output import Path, PendingFiles
from llamapy.gguf.reader import Bytes, GGUFFile
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import Field, GGUFWriter, Source, counted, items_of

Rules = Literal["gguf-split", "converter"]

MAX_PARTS = 65535  # split.count is u16
_NAME = re.compile(r"(?P<prefix>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_SPLIT_KEYS = (keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS)
_LISTED = 100  # missing parts that a message names


class SplitFile:
    """All parts of a set, with the interface of GGUFFile. Metadata are those of the first part."""

    def __init__(self, parts: Sequence[GGUFFile], *, lenient: bool = False) -> None:
        self.parts = list(parts)
        first = self.parts[0]
        self.path, self.version, self.endian = first.path, first.version, first.endian
        self.alignment, self.data_offset = first.alignment, first.data_offset
        self.metadata: Metadata = first.metadata
        self.n_bytes = sum(part.n_bytes for part in self.parts)
        self.problems = [problem for part in self.parts for problem in part.problems]
        self.tensors: list[TensorInfo] = []
        self._by_name: dict[str, TensorInfo] = {}
        for i, part in enumerate(self.parts):
            for info in part.tensors:
                self._take(replace(info, part=i), lenient)

    def _take(self, info: TensorInfo, lenient: bool) -> None:
        self.tensors.append(info)
        earlier = self._by_name.setdefault(info.name, info)
        if earlier.part != info.part:
            problem = FileFormatError(
                self.parts[info.part].path,
                f"is also in {os.path.basename(self.parts[earlier.part].path)}",
                field=f"tensor {shown(info.name)}",
                offset=info.offset,
            )
            if not lenient:
                raise problem
            self.problems.append(problem)

    def tensor(self, name: str) -> TensorInfo:
        """The tensor of this name. ModelError if there is none."""
        if name not in self._by_name:
            raise ModelError(f"{self.path}: no tensor {shown(name)} in {len(self.parts)} parts")
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is a tensor of this name."""
        return name in self._by_name

    def raw(self, tensor: TensorInfo | str) -> Bytes:
        """The bytes of a tensor (or of its name) as stored, read-only, [n_bytes]."""
        info = self.tensor(tensor) if isinstance(tensor, str) else tensor
        return self.parts[info.part].raw(info)

    def bytes(self, tensor: TensorInfo | str) -> Bytes:
        """The bytes of a tensor (or of its name) as little-endian blocks, read-only, [n_bytes]."""
        info = self.tensor(tensor) if isinstance(tensor, str) else tensor
        return self.parts[info.part].bytes(info)

    def piece(self, info: TensorInfo, start: int, n_bytes: int) -> Bytes:
        """`bytes(info)[start : start + n_bytes]` without the rest; both are whole blocks."""
        return self.parts[info.part].piece(info, start, n_bytes)

    def read_into(self, info: TensorInfo, data: Bytes) -> None:
        """Read the blocks of a tensor, little-endian, into `data` [n_bytes]."""
        self.parts[info.part].read_into(info, data)

    def close(self) -> None:
        """Let go of all parts."""
        for part in self.parts:
            part.close()

    def __enter__(self) -> SplitFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_split(
    path: str | os.PathLike[str],
    *,
    mmap: bool = True,
    type_sizes: TypeSizes | None = None,
    lenient: bool = False,
) -> GGUFFile | SplitFile:
    """Open a file, and if it is a part of a set, the whole set. Options as for GGUFFile.

    FileFormatError names all parts that are missing.
    """
    with ExitStack() as opened:

        def enter(name: str | os.PathLike[str]) -> GGUFFile:
            return opened.enter_context(
                GGUFFile(name, mmap=mmap, type_sizes=type_sizes, lenient=lenient)
            )

        entry = enter(path)
        count = _number(entry, keys.SPLIT_COUNT)
        if count <= 1:
            opened.pop_all()
            return entry
        parts = _parts(entry, count, enter)
        total = _number(parts[0], keys.SPLIT_TENSORS)
        found = sum(len(part.tensors) for part in parts)
        if found != total:
            message = f"the {count} parts have {found} tensors, {total} were expected"
            raise FileFormatError(parts[0].path, message, field=keys.SPLIT_TENSORS)
        split = SplitFile(parts, lenient=lenient)
        opened.pop_all()
        return split


def _number(file: GGUFFile, key: str) -> int:
    """An integer of the split keys; 0 if it is missing."""
    if key not in file.metadata:
        return 0
    value = file.metadata[key]
    if not isinstance(value, int) or isinstance(value, bool):
        kind, _ = file.metadata.type(key)
        at = file.metadata.entry(key).start
        raise FileFormatError(
            file.path, f"must be an integer but is {kind.name}", field=f"key {key!r}", offset=at
        )
    return value


def _parts(entry: GGUFFile, count: int, enter: Callable[[str], GGUFFile]) -> list[GGUFFile]:
    """All parts in order. Opens what the names lead to, and goes by the numbers found inside."""
    folder, name = os.path.split(entry.path)
    match = _NAME.fullmatch(name)
    if match is None:
        own = _number(entry, keys.SPLIT_NO)
        raise FileFormatError(
            entry.path,
            f"part {own + 1} of {count}, but its name does not lead to the other parts",
            field=keys.SPLIT_COUNT,
            hint=f"rename it to end in -{own + 1:05d}-of-{count:05d}.gguf",
        )
    names = [f"{match['prefix']}-{i + 1:05d}-of-{match['count']}.gguf" for i in range(count)]
    found: dict[int, GGUFFile] = {}
    _place(entry, count, found)
    for other in sorted((set(names) - {name}) & _listed(entry, folder)):
        _place(enter(os.path.join(folder, other)), count, found)
    missing = [names[i] for i in range(count) if i not in found]
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise FileFormatError(
            entry.path,
            f"{len(missing)} of {count} parts missing: {', '.join(missing[:_LISTED])}{more}",
            field=keys.SPLIT_COUNT,
            hint=f"looked in {folder or '.'}",
        )
    return [found[i] for i in range(count)]


def _listed(entry: GGUFFile, folder: str) -> set[str]:
    try:
        return set(os.listdir(folder or "."))
    except OSError as error:
        message = f"cannot look for the other parts in {folder}: {error.strerror}"
        raise FileFormatError(entry.path, message, field=keys.SPLIT_COUNT) from None


def _place(part: GGUFFile, count: int, found: dict[int, GGUFFile]) -> None:
    """Add a part under the number that it gives itself."""
    own_count, own = _number(part, keys.SPLIT_COUNT), _number(part, keys.SPLIT_NO)
    if own_count != count:
        message = f"belongs to a set of {own_count} parts, not of {count}"
        raise FileFormatError(part.path, message, field=keys.SPLIT_COUNT)
    if not 0 <= own < count:
        raise FileFormatError(part.path, f"part {own} of {count}", field=keys.SPLIT_NO)
    if own in found:
        other = os.path.basename(found[own].path)
        raise FileFormatError(part.path, f"{own}, as {other} has too", field=keys.SPLIT_NO)
    found[own] = part


def part_name(prefix: str, index: int, count: int) -> str:
    """The name of the index-th part (from 0) of a set."""
    return f"{prefix}-{index + 1:05d}-of-{count:05d}.gguf"


def parse_size(text: str) -> int:
    """Bytes from "500M" or "2G" (decimal units, as in llama.cpp). UsageError for anything else."""
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper())
    n_bytes = int(match[1]) * _UNITS[match[2]] if match else 0
    if n_bytes <= 0:
        raise UsageError(f"{text!r} is not a size", hint="write 500M or 2G")
    return n_bytes


def plan(
    tensors: Sequence[TensorInfo],
    *,
    max_tensors: int = 0,
    max_size: int = 0,
    no_tensor_first_split: bool = False,
    alignment: int = limits.DEFAULT_ALIGNMENT,
    rules: Rules = "gguf-split",
) -> list[list[TensorInfo]]:
    """Which tensors go into which part: at most max_tensors each, or max_size bytes of tensor data.

    gguf-split counts padded bytes, the converter bare ones. A tensor above max_size gets a part of
    its own.
    """
    if (max_tensors > 0) == (max_size > 0) or min(max_tensors, max_size) < 0:
        raise UsageError("a split needs either a number of tensors or a size")
    parts: list[list[TensorInfo]] = [[], []] if no_tensor_first_split else [[]]
    size = 0
    for info in tensors:
        n_bytes = limits.padded(info.n_bytes, alignment) if rules == "gguf-split" else info.n_bytes
        full = size + n_bytes > max_size if max_size else len(parts[-1]) >= max_tensors
        if full and parts[-1]:
            parts.append([])
            size = 0
        parts[-1].append(info)
        size += n_bytes
    return parts


def write_split(
    writer: GGUFWriter,
    source: Source = (),
    *,
    max_tensors: int = 0,
    max_size: int = 0,
    no_tensor_first_split: bool = False,
    rules: Rules = "gguf-split",
    inputs: Iterable[Path] = (),
    overwrite: bool = True,
    on_done: Callable[[int], None] | None = None,
) -> list[str]:
    """Write what `writer` has collected as a set beside its path, and return the parts' paths.

    Names are the writer's path, without .gguf, and a number. All parts appear together at the end.
    With the converter's rules a model that needs one part only is written as an ordinary file.
    """
    groups = plan(
        writer.tensors,
        max_tensors=max_tensors,
        max_size=max_size,
        no_tensor_first_split=no_tensor_first_split,
        alignment=writer.alignment,
        rules=rules,
    )
    if len(groups) == 1 and rules == "converter":
        writer.write(source, inputs=inputs, overwrite=overwrite, on_done=on_done)
        return [writer.path]
    if len(groups) > MAX_PARTS:
        raise UsageError(f"{len(groups)} parts, at most {MAX_PARTS} are possible")
    return write_groups(
        writer, groups, source, rules=rules, inputs=inputs, overwrite=overwrite, on_done=on_done
    )


def write_groups(
    writer: GGUFWriter,
    groups: Sequence[Sequence[TensorInfo]],
    source: Source = (),
    *,
    rules: Rules = "gguf-split",
    inputs: Iterable[Path] = (),
    overwrite: bool = True,
    on_done: Callable[[int], None] | None = None,
) -> list[str]:
    """`write_split` for parts that are known already: `groups` are the writer's tensors by part."""
    prefix = writer.path.removesuffix(".gguf")
    paths = [part_name(prefix, i, len(groups)) for i in range(len(groups))]
    layouts = [
        writer.layout(_fields(writer, i, len(groups), rules), group)
        for i, group in enumerate(groups)
    ]
    placed = [info for layout in layouts for info in layout.tensors]
    items = counted(items_of(source, placed), on_done)
    targets = [(path, layout.n_bytes) for path, layout in zip(paths, layouts)]
    with PendingFiles(targets, inputs=inputs, overwrite=overwrite) as pending:
        for i, layout in enumerate(layouts):
            with pending.open(i) as file:
                writer.write_file(file, layout, items)
    return paths


def _fields(writer: GGUFWriter, index: int, count: int, rules: Rules) -> list[Field]:
    """Metadata of a part: everything in the first, then only what says which part it is."""
    fields = []
    if index == 0:
        fields = [field for key, field in writer.fields.items() if key not in _SPLIT_KEYS]
    own_alignment = index == 0 and keys.ALIGNMENT in writer.fields
    if writer.alignment != limits.DEFAULT_ALIGNMENT and not own_alignment:
        fields.append(writer.alignment_field())
    e = writer.endian
    no = Field(keys.SPLIT_NO, ValueType.UINT16, struct.pack(e + "H", index))
    parts = Field(keys.SPLIT_COUNT, ValueType.UINT16, struct.pack(e + "H", count))
    total = struct.pack(e + "i", len(writer.tensors))
    tensors = Field(keys.SPLIT_TENSORS, ValueType.INT32, total)
    return fields + ([no, tensors, parts] if rules == "gguf-split" else [no, parts, tensors])
