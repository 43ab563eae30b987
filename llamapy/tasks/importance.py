"""Importance matrices: mean squares of what each column of a weight is multiplied with.

Reads both formats of llama.cpp (GGUF and the older .dat), told apart by content, and writes both
(tools/imatrix/imatrix.cpp, common/imatrix-loader.cpp). What a quantization makes of them is in
importance_use.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import FileFormatError, LlamapyError
from llamapy.gguf import keys, limits, values
from llamapy.gguf.cursor import Cursor
from llamapy.gguf.limits import shown
from llamapy.gguf.output import Path, PendingFiles
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import codec

Floats = NDArray[np.float32]

TYPE = "imatrix"  # general.type
DATASETS = "imatrix.datasets"
CHUNK_COUNT = "imatrix.chunk_count"
CHUNK_SIZE = "imatrix.chunk_size"
N_LAYER_NEXTN = "imatrix.n_layer_nextn"
STATS_SCHEMA = "imatrix.stats_schema"

DEFAULT_CHUNK = 512  # tokens a chunk, where a file does not say it

_F32 = 0
_IN_SUM2, _IN_SUM, _COUNTS, _STATS = ".in_sum2", ".in_sum", ".counts", ".stats"
_MAX_ENTRIES = 1 << 20


@dataclass
class Entry:
    """What was collected for one weight, an expert a row.

    sums    [n_mat, n_cols] sums of squares over the tokens of each column
    counts  [n_mat] tokens; of a .dat file calls, and one count for all experts
    means   [n_mat, n_cols] sums of the values themselves, if they were collected
    stats   a few figures about the entry (imatrix.stats_schema), if the file has them
    """

    sums: Floats
    counts: NDArray[np.int64]
    means: Floats | None = None
    stats: Floats | None = None

    def mean_squares(self) -> Floats:
        """[n_mat, n_cols]: sums by count; 1 for matrices that no token has reached."""
        counts = self.counts.astype(np.float32)[:, None]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            found: Floats = np.where(counts > 0, self.sums / counts, np.float32(1))
        return found

    @property
    def unseen(self) -> list[int]:
        """Numbers of the matrices that no token has reached."""
        return [int(i) for i in np.flatnonzero(self.counts <= 0)]


@dataclass
class Imatrix:
    """An importance matrix. `chunk_size` is in tokens; 0 in a .dat file, which counts calls."""

    entries: dict[str, Entry]
    datasets: list[str] = field(default_factory=list)
    chunk_count: int = 0
    chunk_size: int = 0
    n_layer_nextn: int = 0
    stats_schema: list[str] = field(default_factory=list)
    path: str = ""

    @property
    def is_legacy(self) -> bool:
        """Whether counts are calls (of a .dat file) and not tokens."""
        return self.chunk_size == 0

    def described(self) -> str:
        """File, datasets and chunks, for messages."""
        datasets = ", ".join(self.datasets) or "unknown data"
        return f"{self.path or 'the imatrix'} ({datasets}, {self.chunk_count} chunks)"


# -- reading


def read(path: str | os.PathLike[str]) -> Imatrix:
    """Read an importance matrix of either format. FileFormatError for anything else."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            head = file.read(4)
            if head != limits.MAGIC:
                return _read_dat(name, head + file.read())
    except OSError as error:
        raise FileFormatError(name, f"cannot be opened: {error.strerror}") from None
    with GGUFFile(name, mmap=False, type_sizes=codec.type_sizes) as opened:
        return _read_gguf(opened)


def _read_gguf(file: GGUFFile) -> Imatrix:
    metadata = file.metadata
    missing = [key for key in (DATASETS, CHUNK_COUNT, CHUNK_SIZE) if key not in metadata]
    if missing:
        raise FileFormatError(
            file.path,
            f"is no importance matrix: {', '.join(missing)} missing",
            hint="collect one with `llamapy imatrix`",
        )
    if metadata.type(DATASETS)[1] is not ValueType.STRING:
        raise FileFormatError(file.path, "must be an array of strings", field=f"key {DATASETS!r}")
    groups: dict[str, dict[str, Floats]] = {}
    for info in file.tensors:
        end = next((s for s in (_IN_SUM2, _IN_SUM, _COUNTS, _STATS) if info.name.endswith(s)), None)
        if end is None:
            continue
        if info.type_id != _F32:
            raise FileFormatError(file.path, "must be f32", field=f"tensor {shown(info.name)}")
        n_mat = info.n_elements // info.ne[0] if info.ne and info.ne[0] else 1
        data = file.bytes(info).view("<f4").astype(np.float32).reshape(n_mat, -1)
        groups.setdefault(info.name.removesuffix(end), {})[end] = data
    schema = metadata.get(STATS_SCHEMA, [])
    return Imatrix(
        {name: _entry(file.path, name, group) for name, group in sorted(groups.items())},
        [str(one) for one in _listed(metadata[DATASETS])],
        _integer(file, CHUNK_COUNT),
        _integer(file, CHUNK_SIZE),
        _integer(file, N_LAYER_NEXTN) if N_LAYER_NEXTN in metadata else 0,
        [str(one) for one in _listed(schema)],
        file.path,
    )


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(file: GGUFFile, key: str) -> int:
    value = file.metadata[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise FileFormatError(file.path, "must be an integer", field=f"key {key!r}")
    return value


def _entry(path: str, name: str, group: dict[str, Floats]) -> Entry:
    sums, counts, means = group.get(_IN_SUM2), group.get(_COUNTS), group.get(_IN_SUM)
    if sums is None or counts is None:
        what = "sums of squares" if sums is None else "counts"
        raise FileFormatError(path, f"has no {what}", field=f"entry {shown(name)}")
    n = counts.size
    if n == 0 or sums.size % n or (means is not None and means.size != sums.size):
        message = f"{sums.size} sums do not go with {n} counts"
        raise FileFormatError(path, message, field=f"entry {shown(name)}")
    if not np.isfinite(counts).all():
        raise FileFormatError(path, "a count is not finite", field=f"entry {shown(name)}")
    stats = group.get(_STATS)
    return Entry(
        sums.reshape(n, -1),
        np.rint(counts.ravel()).astype(np.int64),
        None if means is None else means.reshape(n, -1),
        None if stats is None else stats.ravel(),
    )


def _read_dat(path: str, raw: bytes) -> Imatrix:
    at = Cursor(path, raw, len(raw))
    if len(raw) < 8:
        raise FileFormatError(path, "is no importance matrix: too short", offset=0)
    n_entries = at.number("i", "number of entries")
    if not 0 < n_entries <= min(_MAX_ENTRIES, at.left // 12):
        message = f"is no importance matrix: it would have {n_entries} entries"
        raise FileFormatError(path, message, offset=0)
    found = Imatrix({}, path=path)
    for i in range(n_entries):
        name = _dat_text(at, f"name of entry {i}")
        n_call = at.number("i", f"calls of {shown(name)}")
        start, n = at.pos, at.number("i", f"length of {shown(name)}")
        if n < 1:
            raise at.fail(f"{n} values", f"length of {shown(name)}", start)
        data = np.frombuffer(at.take(4 * n, f"values of {shown(name)}"), "<f4")
        if name in found.entries:
            raise at.fail("occurs twice", f"entry {shown(name)}", start)
        sums = data.astype(np.float32)[None]
        # A count that is not positive says that the values are means already.
        found.entries[name] = Entry(sums, np.array([max(n_call, 1)], np.int64))
    if at.left:  # the oldest files end here
        found.chunk_count = at.number("i", "number of chunks")
        if at.left:
            found.datasets = [text] if (text := _dat_text(at, "dataset")) else []
    if at.left:
        raise at.fail(f"{at.left} bytes after the end", "end")
    return found


def _dat_text(at: Cursor, what: str) -> str:
    start, n = at.pos, at.number("i", what)
    if not 0 <= n <= limits.MAX_STRING:
        raise at.fail(f"a text of {n} bytes", what, start)
    return values.to_text(at.take(n, what))


# -- writing


def write_gguf(imatrix: Imatrix, path: Path, *, overwrite: bool = True) -> None:
    """Write the GGUF form. What a .dat file counted as calls becomes chunks of 512 tokens."""
    whole = in_tokens(imatrix)
    writer = GGUFWriter(path, trim_dims=True)
    writer.add(keys.TYPE, TYPE)
    writer.add(DATASETS, whole.datasets, ValueType.ARRAY, ValueType.STRING)
    writer.add(CHUNK_COUNT, max(whole.chunk_count, 0), ValueType.UINT32)
    writer.add(CHUNK_SIZE, whole.chunk_size, ValueType.UINT32)
    if whole.n_layer_nextn:
        writer.add(N_LAYER_NEXTN, whole.n_layer_nextn, ValueType.UINT32)
    if whole.stats_schema:
        writer.add(STATS_SCHEMA, whole.stats_schema, ValueType.ARRAY, ValueType.STRING)
    data: list[bytes] = []
    for name, entry in sorted(whole.entries.items()):
        for suffix, array in _tensors(entry):
            writer.add_tensor(name + suffix, array.shape[::-1], _F32, array.nbytes)
            data.append(array.astype("<f4").tobytes())
    writer.write(data, overwrite=overwrite, inputs=[imatrix.path] if imatrix.path else [])


def _tensors(entry: Entry) -> Iterator[tuple[str, Floats]]:
    yield _IN_SUM2, entry.sums
    yield _COUNTS, entry.counts.astype(np.float32)[:, None]
    if entry.means is not None:
        yield _IN_SUM, entry.means
    if entry.stats is not None:
        yield _STATS, entry.stats


def write_dat(imatrix: Imatrix, path: Path, *, overwrite: bool = True) -> None:
    """Write the older form. Entries without any count are left out; of several datasets it keeps
    the last; sums of values and statistics it has no place for.
    """
    kept = {n: e for n, e in sorted(imatrix.entries.items()) if (e.counts > 0).any()}
    parts = [struct.pack("<i", len(kept))]
    for name, entry in kept.items():
        n_call = int(entry.counts.max())
        if not imatrix.is_legacy:
            n_call = -(-n_call // imatrix.chunk_size)  # rounded up: never 0
        scaled = entry.sums if imatrix.is_legacy else entry.mean_squares() * np.float32(n_call)
        raw = values.to_bytes(name)
        parts.append(struct.pack(f"<i{len(raw)}sii", len(raw), raw, n_call, scaled.size))
        parts.append(scaled.astype("<f4").tobytes())
    last = values.to_bytes(imatrix.datasets[-1]) if imatrix.datasets else b""
    parts.append(struct.pack(f"<ii{len(last)}s", imatrix.chunk_count, len(last), last))
    content = b"".join(parts)
    inputs = [imatrix.path] if imatrix.path else []
    with (
        PendingFiles([(path, len(content))], inputs=inputs, overwrite=overwrite) as pending,
        pending.open(0) as file,
    ):
        file.write(content)


def in_tokens(imatrix: Imatrix, chunk_size: int = DEFAULT_CHUNK) -> Imatrix:
    """The matrix with counts in tokens: calls become chunks of `chunk_size` tokens."""
    if not imatrix.is_legacy:
        return imatrix
    entries = {
        name: Entry(e.sums * np.float32(chunk_size), e.counts * chunk_size)
        for name, e in imatrix.entries.items()
    }
    return Imatrix(
        entries, list(imatrix.datasets), imatrix.chunk_count, chunk_size, path=imatrix.path
    )


def merge(several: Sequence[Imatrix]) -> Imatrix:
    """Add up matrices of one model: sums, counts, chunks; datasets one after the other.

    LlamapyError if an entry has not the same size in all of them.
    """
    sizes = [one.chunk_size for one in several if not one.is_legacy]
    chunk_size = sizes[0] if sizes else DEFAULT_CHUNK
    whole = Imatrix({}, chunk_size=chunk_size)
    for one in [in_tokens(each, chunk_size) for each in several]:
        for name, entry in one.entries.items():
            earlier = whole.entries.get(name)
            whole.entries[name] = _added(name, earlier, entry) if earlier else entry
        whole.datasets += one.datasets
        whole.chunk_count += one.chunk_count * one.chunk_size // chunk_size
        whole.n_layer_nextn = whole.n_layer_nextn or one.n_layer_nextn
    return whole


def _added(name: str, a: Entry, b: Entry) -> Entry:
    """Both together. A .dat entry has one count for all experts: it counts for each."""
    n_mat = max(len(a.counts), len(b.counts))
    for one in (a, b):
        if one.sums.size != a.sums.size or len(one.counts) not in (1, n_mat):
            raise LlamapyError(
                f"entry {shown(name)} has {a.sums.size} values of {len(a.counts)} matrices in one"
                f" file and {b.sums.size} of {len(b.counts)} in another",
                hint="importance matrices of different models cannot be merged",
            )
    counts = np.broadcast_to(a.counts, n_mat) + np.broadcast_to(b.counts, n_mat)
    sums = a.sums.reshape(n_mat, -1) + b.sums.reshape(n_mat, -1)
    if a.means is None or b.means is None:
        return Entry(sums, counts)
    return Entry(sums, counts, a.means.reshape(n_mat, -1) + b.means.reshape(n_mat, -1))
