"""The header of a GGUF file: parse it from bytes, and refuse what no file may say. Opens nothing.

Layout: ggml/include/gguf.h. Refusals: those of ggml/src/gguf.cpp; and tensors must end in the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from llamapy.core.errors import FileFormatError
from llamapy.gguf import keys, limits, values
from llamapy.gguf.cursor import Cursor
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Entry, Metadata
from llamapy.gguf.values import ValueType

TypeSizes = Callable[[int], "tuple[int, int] | None"]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor as its file declares it. `ne`: sizes, innermost first; if empty, one element."""

    name: str
    ne: tuple[int, ...]
    type_id: int
    offset: int  # from the start of its file
    n_bytes: int
    part: int = 0  # which file of a split set

    @property
    def n_elements(self) -> int:
        """How many values the tensor has."""
        return prod(self.ne)


@dataclass(frozen=True, slots=True)
class Header:
    """Everything a header says, checked."""

    version: int
    endian: str
    alignment: int
    data_offset: int
    data_end: int  # where the padded data of the last tensor ends
    metadata: Metadata
    tensors: list[TensorInfo]
    problems: list[FileFormatError]


class Problems:
    """Faults that a file can be shown with: collected if lenient, else the first is raised."""

    def __init__(self, lenient: bool) -> None:
        self._lenient = lenient
        self.found: list[FileFormatError] = []

    def add(self, problem: FileFormatError) -> None:
        """Keep or raise a problem."""
        if not self._lenient:
            raise problem
        self.found.append(problem)


def parse(at: Cursor, type_sizes: TypeSizes | None, lenient: bool) -> Header:
    """Parse a whole header. NeedMore if the cursor's bytes end before the header does.

    lenient: duplicates and empty keys are collected in `problems` instead of raised.
    """
    problems = Problems(lenient)
    version = _read_version(at)
    n_tensors = at.count("tensor count", limits.MIN_TENSOR_BYTES)
    n_fields = at.count("key-value count", limits.MIN_FIELD_BYTES)
    if n_tensors * limits.MIN_TENSOR_BYTES + n_fields * limits.MIN_FIELD_BYTES > at.left:
        needs = at.pos + n_tensors * limits.MIN_TENSOR_BYTES + n_fields * limits.MIN_FIELD_BYTES
        raise limits.truncated(at.path, at.size, needs, field="counts", offset=8)
    entries = [_read_entry(at, i) for i in range(n_fields)]
    _check_keys(at, entries, problems)
    metadata = Metadata(at.buf, entries, at.endian)
    alignment = _alignment(at, metadata)
    found = [_read_tensor(at, i, type_sizes) for i in range(n_tensors)]
    data_offset = limits.padded(at.pos, alignment) if n_tensors else at.pos
    tensors, data_end = _place(at, found, data_offset, alignment, type_sizes is not None)
    _check_names(at, tensors, problems)
    return Header(
        version, at.endian, alignment, data_offset, data_end, metadata, tensors, problems.found
    )


def _read_version(at: Cursor) -> int:
    """Read magic and version, and learn from the version which byte order the file has."""
    head = bytes(at.buf[:512])
    if head[:4] != limits.MAGIC[: len(head)] or not head:
        raise limits.wrong_magic(at.path, head) if head else at.fail("the file is empty", "magic")
    at.need(4, "magic")
    at.pos = 4
    version = at.number("I", "version")
    if version & 0xFFFF == 0 and version:
        at.endian = ">"  # the magic reads the same in both orders, the version does not
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version == 1:
        message, hint = "GGUF version 1 is no longer supported", "convert the model again"
    elif version > limits.VERSION:
        message = f"GGUF version {version} is newer than {limits.VERSION}"
        hint = "is there a newer llamapy?"
    else:
        message, hint = f"bad GGUF version {version}", ""
    if version not in limits.VERSIONS:
        raise FileFormatError(at.path, message, field="version", offset=4, hint=hint)
    return version


def _read_entry(at: Cursor, index: int) -> Entry:
    key = values.to_text(at.string(f"key {index}"))
    field = f"key {shown(key)}"
    kind = _value_type(at, field)
    start = at.pos
    if kind is ValueType.STRING:
        at.string(field)
        return Entry(key, kind, None, 1, start, start, at.pos)
    if kind is not ValueType.ARRAY:
        at.take(kind.n_bytes, field)
        return Entry(key, kind, None, 1, start, start, at.pos)
    element = _value_type(at, field + " element type")
    if element is ValueType.ARRAY:
        raise at.fail("arrays of arrays are not allowed", field, at.pos - 4)
    count_at = at.pos
    count = at.count(field + " array length", element.n_bytes or 8)
    if count > limits.MAX_ARRAY:
        raise at.fail(f"array of {count} elements, at most {limits.MAX_ARRAY}", field, count_at)
    data, strings = at.pos, None
    if element is ValueType.STRING:
        strings = at.strings(count, field)
    else:
        at.need(count * element.n_bytes, field)
        at.pos += count * element.n_bytes
    return Entry(key, kind, element, count, start, data, at.pos, strings)


def _value_type(at: Cursor, field: str) -> ValueType:
    number = at.number("i", field + " value type")
    try:
        return ValueType(number)
    except ValueError:
        raise at.fail(f"value type {number} is not one of 0..12", field, at.pos - 4) from None


def _check_keys(at: Cursor, entries: list[Entry], problems: Problems) -> None:
    seen: set[str] = set()
    for i, entry in enumerate(entries):
        if not entry.key:
            problems.add(at.fail("the key is empty", f"key {i}", entry.start - 12))
        elif entry.key in seen:
            key_at = entry.start - 4 - len(values.to_bytes(entry.key))
            problems.add(at.fail("duplicate key", f"key {shown(entry.key)}", key_at))
        seen.add(entry.key)


def _alignment(at: Cursor, metadata: Metadata) -> int:
    if keys.ALIGNMENT not in metadata:
        return limits.DEFAULT_ALIGNMENT
    entry = metadata.entry(keys.ALIGNMENT)
    field = f"key {shown(keys.ALIGNMENT)}"
    if entry.kind is not ValueType.UINT32:
        raise at.fail(f"must be UINT32 but is {entry.kind.name}", field, entry.start)
    value = metadata.value(entry)
    assert isinstance(value, int)
    fault = limits.alignment_fault(value)
    if fault:
        raise at.fail(fault, field, entry.start)
    return value


def _read_tensor(at: Cursor, index: int, type_sizes: TypeSizes | None) -> tuple[TensorInfo, int]:
    """One tensor with its offset within the data, and where in the file that offset is stated."""
    name_at = at.pos
    raw = at.string(f"tensor {index} name")
    field = f"tensor {shown(raw)}"
    if len(raw) > limits.MAX_NAME:
        raise at.fail(f"name of {len(raw)} bytes, at most {limits.MAX_NAME}", field, name_at)
    n_dims = at.number("I", field + " dimension count")
    if n_dims > limits.MAX_DIMS:
        raise at.fail(f"{n_dims} dimensions, at most {limits.MAX_DIMS}", field, at.pos - 4)
    shape_at = at.pos
    ne = tuple(at.number("q", field + " shape") for _ in range(n_dims))
    fault = limits.shape_fault(ne)
    if fault:
        raise at.fail(fault, field, shape_at)
    type_at = at.pos
    type_id = at.number("i", field + " type")
    n_bytes = 0 if type_sizes is None else _size(at, field, ne, type_id, type_sizes, type_at)
    offset_at = at.pos
    offset = at.number("Q", field + " offset")
    return TensorInfo(values.to_text(raw), ne, type_id, offset, n_bytes), offset_at


def _size(
    at: Cursor, field: str, ne: tuple[int, ...], type_id: int, type_sizes: TypeSizes, type_at: int
) -> int:
    sizes = type_sizes(type_id)
    if sizes is None:
        raise at.fail(f"unknown tensor type {type_id}", field, type_at)
    try:
        return limits.tensor_bytes(ne, *sizes)
    except ValueError as error:
        raise at.fail(f"type {type_id}, shape {list(ne)}: {error}", field, type_at) from None


def _place(
    at: Cursor,
    found: list[tuple[TensorInfo, int]],
    data_offset: int,
    alignment: int,
    sizes_known: bool,
) -> tuple[list[TensorInfo], int]:
    """Check where tensors lie; give them with absolute offsets, and where the padded data ends."""
    if not sizes_known:
        found = _sizes_from_gaps(at, found, at.size - data_offset, alignment)
    end = 0
    for info, offset_at in found:
        if sizes_known and info.offset != end:  # no gaps, no other order: the rule of gguf.cpp
            message = f"has offset {info.offset}, expected {end}"
            raise at.fail(message, f"tensor {shown(info.name)}", offset_at)
        end = info.offset + limits.padded(info.n_bytes, alignment)
    tensors = [replace(info, offset=data_offset + info.offset) for info, _ in found]
    needs = max((info.offset + info.n_bytes for info in tensors), default=data_offset)
    needs = max(needs, data_offset)
    if needs > at.size:
        raise _beyond(at, tensors, needs, data_offset, alignment)
    return tensors, data_offset + end


def _sizes_from_gaps(
    at: Cursor, found: list[tuple[TensorInfo, int]], room: int, alignment: int
) -> list[tuple[TensorInfo, int]]:
    """Give every tensor the bytes up to the next one, for readers that know no types."""
    nexts = [info.offset for info, _ in found[1:]] + [max(room, 0)]
    sized = []
    for (info, offset_at), after in zip(found, nexts):
        if info.offset % alignment or info.offset > after:
            message = f"offset {info.offset} is not a multiple of {alignment} up to {after}"
            raise at.fail(message, f"tensor {shown(info.name)}", offset_at)
        sized.append((replace(info, n_bytes=after - info.offset), offset_at))
    return sized


def _beyond(
    at: Cursor, tensors: list[TensorInfo], needs: int, data_offset: int, alignment: int
) -> FileFormatError:
    """The error for data that ends behind the file, naming the first tensor that is cut."""
    for info in tensors if data_offset <= at.size else ():
        if info.offset + info.n_bytes > at.size:
            field = f"tensor {shown(info.name)} (shape {list(info.ne)}, {info.n_bytes} bytes)"
            return limits.truncated(at.path, at.size, needs, field=field, offset=info.offset)
    field = f"start of the data (alignment {alignment})"
    return limits.truncated(at.path, at.size, needs, field=field, offset=data_offset)


def _check_names(at: Cursor, tensors: list[TensorInfo], problems: Problems) -> None:
    seen: set[str] = set()
    for info in tensors:
        if info.name in seen:
            problems.add(
                at.fail("duplicate tensor name", f"tensor {shown(info.name)}", info.offset)
            )
        seen.add(info.name)
