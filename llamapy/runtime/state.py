"""A context's memory as bytes, and session files: llama.cpp's formats, so that either can read the
other's.

Layout (llama-kv-cache.cpp `state_write`, llama-context.cpp `state_save_file`), little endian:

    session file   u32 "ggsn" 11, u32 n_tokens, i32 tokens, u32 length and text of the architecture,
    caches sequence file  u32 "ggsq" 4, u32 n_tokens, i32 tokens, caches (cells of one sequence)
    cache          u32 streams (1), u32 cells; nothing more if there are none; for each cell i32
                   position, u32 number of sequences, i32 sequences; u32 1 if V is transposed, u32
                   layers, u32 sizes of the matrices that turn K and V (0: none); for each layer i32
                   type, u64 row bytes, the cells' rows of K; then V likewise, or transposed: i32
                   type, u32 element bytes, u32 rows, row by row

A model with windowed layers has two caches, the full one first. Logits and random numbers are not
kept.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.core.errors import ContextFullError, FileFormatError
from llamapy.gguf.output import PendingFiles
from llamapy.graph import Tensor
from llamapy.runtime.memory.cells import Ids
from llamapy.runtime.memory.kv import KV

if TYPE_CHECKING:
    from llamapy.runtime.context import Context

SESSION = (0x6767736E, 11)  # magic and version; the version before has no matrix sizes
SEQUENCE = (0x67677371, 4)

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def save(context: Context, seq: int = -1) -> bytes:
    """The memory of all sequences, or of one, without the cells that its next token no longer
    sees."""
    context.settle()
    return b"".join(b"".join(_write(kv, seq)) for kv in context.memory.caches())


def load(
    context: Context, data: bytes, seq: int = -1, *, where: str = "state", before: bool = False
) -> None:
    """Put back what `save` gave: in place of everything, or as sequence `seq`. All or nothing.

    before: the bytes are of the format's previous version. FileFormatError if the bytes are not of
    such a context, ContextFullError if they do not fit.
    """
    reader = _Reader(data, where)
    reader.before = before
    parts = [_read(reader, kv, seq) for kv in context.memory.caches()]
    reader.end()
    saved = context.memory.save()
    try:
        slots = [_room(kv, part, seq) for kv, part in zip(context.memory.caches(), parts)]
    except ContextFullError:
        context.memory.restore(saved)
        raise
    for part, ids in zip(parts, slots):
        for tensor, backend, rows in part.rows:
            _set_rows(tensor, backend, ids, rows)


def save_session(context: Context, path: str | os.PathLike[str], tokens: Sequence[int]) -> None:
    """Write a session file: `tokens` are those that the memory holds, for whoever goes on with
    it."""
    arch = context.model.arch.encode()
    head = _head(SESSION, tokens) + struct.pack("<I", len(arch)) + arch
    _write_file(path, head + save(context))


def load_session(context: Context, path: str | os.PathLike[str]) -> list[int]:
    """Read a session file in place of all memory; its tokens."""
    reader = _open(path)
    tokens = _tokens(reader, SESSION)
    arch = bytes(reader.take(reader.u32("architecture"), "architecture")).decode("utf-8", "replace")
    if arch != context.model.arch:
        raise reader.wrong("architecture", f"is {arch!r}, the model's is {context.model.arch!r}")
    load(context, reader.rest(), where=reader.where, before=reader.before)
    return tokens


def save_sequence(
    context: Context, path: str | os.PathLike[str], seq: int, tokens: Sequence[int]
) -> None:
    """Write one sequence to a file."""
    _write_file(path, _head(SEQUENCE, tokens) + save(context, seq))


def load_sequence(context: Context, path: str | os.PathLike[str], seq: int) -> list[int]:
    """Read a sequence file as sequence `seq`; its tokens."""
    reader = _open(path)
    tokens = _tokens(reader, SEQUENCE)
    load(context, reader.rest(), seq, where=reader.where, before=reader.before)
    return tokens


# -- writing


def _head(kind: tuple[int, int], tokens: Sequence[int]) -> bytes:
    return struct.pack(f"<III{len(tokens)}i", *kind, len(tokens), *tokens)


def _write_file(path: str | os.PathLike[str], data: bytes) -> None:
    with PendingFiles([(path, len(data))]) as pending, pending.open(0) as file:
        file.write(data)


def _write(kv: KV, seq: int) -> Iterator[bytes]:
    cells = kv.cells
    chosen = cells.of(seq)
    if kv.window and seq >= 0:
        chosen &= cells.pos_max(seq) - cells.pos < kv.window
    ids = np.flatnonzero(chosen)
    yield struct.pack("<II", 1, len(ids))
    if not len(ids):
        return
    for i in ids:
        mine = [seq] if seq >= 0 else np.flatnonzero(cells.seqs[i]).tolist()
        yield struct.pack(f"<iI{len(mine)}i", cells.pos[i], len(mine), *mine)
    yield struct.pack("<IIII", 0, len(kv.layers), kv.k_turn, kv.v_turn)
    for tensors in (kv.k, kv.v):
        for index, tensor in tensors.items():
            yield struct.pack("<iQ", tensor.kind.type_id, tensor.nb[1])
            for first, end in _ranges(ids):
                yield kv.backends[index].get_tensor(_rows(tensor, first, end)).tobytes()


def _ranges(ids: Ids) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of consecutive numbers."""
    cuts = np.flatnonzero(np.diff(ids) != 1) + 1
    for run in np.split(ids, cuts):
        yield int(run[0]), int(run[-1]) + 1


def _rows(tensor: Tensor, first: int, end: int) -> Tensor:
    """A view of some rows that has memory."""
    offset = first * tensor.nb[1]
    rows = Tensor(tensor.kind, [tensor.ne[0], end - first], view_src=tensor, view_offset=offset)
    assert tensor.data is not None
    rows.buffer, rows.data = tensor.buffer, tensor.data + offset
    return rows


def _set_rows(tensor: Tensor, backend: Any, ids: Ids, rows: Bytes) -> None:
    order = np.argsort(ids)
    at = 0
    for first, end in _ranges(ids[order]):
        n = end - first
        backend.set_tensor(_rows(tensor, first, end), rows[order[at : at + n]])
        at += n


# -- reading


@dataclass
class _Part:
    """What a file says of one cache: positions [n], sequences [n, n_seq_max], and (tensor, backend,
    rows)."""

    pos: np.ndarray[Any, np.dtype[np.int32]]
    seqs: np.ndarray[Any, np.dtype[np.bool_]]
    rows: list[tuple[Tensor, Any, Bytes]]


def _room(kv: KV, part: _Part, seq: int) -> Ids:
    """Cells for the part, marked as taken."""
    if seq < 0:
        kv.cells.clear()
    else:
        kv.cells.remove(seq)
    ids = kv.cells.find(len(part.pos), kv.window)
    if ids is None:
        limit = kv.cells.limit
        raise ContextFullError(f"the state has {len(part.pos)} cells, the context room for {limit}")
    if len(ids):
        kv.take(ids, part.pos, part.seqs)
    return ids


def _read(reader: _Reader, kv: KV, seq: int) -> _Part:
    reader.expect(1, "streams")
    n = reader.u32("cells")
    if n > reader.left // 8:
        raise reader.wrong("cells", f"are {n}, more than the bytes that follow could hold")
    part = _Part(np.empty(n, np.int32), np.zeros((n, kv.n_seq_max), np.bool_), [])
    for i in range(n):
        part.pos[i] = reader.number("<i", "position")
        for _ in range(reader.u32("number of sequences")):
            mine = reader.number("<i", "sequence")
            if seq < 0 and not 0 <= mine < kv.n_seq_max:
                raise reader.wrong("sequence", f"is {mine}, the context has {kv.n_seq_max}")
            part.seqs[i, mine if seq < 0 else seq] = True
        if part.pos[i] < 0 or not part.seqs[i].any():
            raise reader.wrong("cell", f"{i} has position {part.pos[i]} or no sequence")
    if n:
        _read_rows(reader, kv, part)
    return part


def _read_rows(reader: _Reader, kv: KV, part: _Part) -> None:
    transposed = reader.u32("V's layout")
    reader.expect(len(kv.layers), "layers")
    for size, what in ((kv.k_turn, "K"), (kv.v_turn, "V")):
        if not reader.before:
            reader.expect(size, f"size of {what}'s matrix")
    n = len(part.pos)
    for tensors, across in ((kv.k, False), (kv.v, transposed == 1)):
        for index, tensor in tensors.items():
            reader.expect(tensor.kind.type_id, "type")
            rows = _across(reader, tensor, n) if across else _along(reader, tensor, n)
            part.rows.append((tensor, kv.backends[index], rows))


def _along(reader: _Reader, tensor: Tensor, n: int) -> Bytes:
    if (size := reader.number("<Q", "row size")) != tensor.nb[1]:
        raise reader.wrong("row size", f"is {size}, the context's {tensor.nb[1]}")
    return reader.take(n * tensor.nb[1], "rows").reshape(n, -1)


def _across(reader: _Reader, tensor: Tensor, n: int) -> Bytes:
    """Values written one after the other for all cells, turned into rows."""
    size = tensor.kind.n_bytes
    reader.expect(size, "element size")
    reader.expect(tensor.ne[0], "values a cell")
    values = reader.take(n * tensor.ne[0] * size, "values").reshape(tensor.ne[0], n, size)
    return np.ascontiguousarray(values.swapaxes(0, 1)).reshape(n, -1)


class _Reader:
    """Takes numbers and bytes from the front; FileFormatError where they end or differ."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.at = np.frombuffer(data, np.uint8), where, 0
        self.before = False  # the format's previous version

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, n: int, field: str) -> Bytes:
        if n > self.left:
            raise self.wrong(field, f"needs {n} bytes, {self.left} are left: the file is cut off")
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form: str, field: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form), field).tobytes())[0])

    def u32(self, field: str) -> int:
        return self.number("<I", field)

    def expect(self, wanted: int, field: str) -> None:
        if (got := self.u32(field)) != wanted:
            raise self.wrong(field, f"{got} instead of {wanted}")

    def rest(self) -> bytes:
        return self.take(self.left, "state").tobytes()

    def end(self) -> None:
        if self.left:
            raise self.wrong("end", f"{self.left} bytes are left over")

    def wrong(self, field: str, message: str) -> FileFormatError:
        return FileFormatError(self.where, message, field=field, offset=self.at)


def _open(path: str | os.PathLike[str]) -> _Reader:
    try:
        with open(path, "rb") as file:
            return _Reader(file.read(), os.fspath(path))
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None


def _tokens(reader: _Reader, kind: tuple[int, int]) -> list[int]:
    reader.expect(kind[0], "magic")
    version = reader.u32("version")
    if version not in (kind[1], kind[1] - 1):
        raise reader.wrong("version", f"{version}, only {kind[1] - 1} and {kind[1]} can be read")
    reader.before = version < kind[1]
    n = reader.u32("tokens")
    return [int(t) for t in reader.take(4 * n, "tokens").view("<i4")]
