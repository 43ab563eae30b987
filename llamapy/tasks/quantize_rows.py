"""The data of a quantized file, tensor by tensor: read, decoded, encoded, on a few threads.

Pieces of rows are worked on ahead of the one that is written, across tensors, and handed out in
order: memory is a few pieces, and the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from llamapy.backend.cpu.threads import budget
from llamapy.core.errors import Aborted, QuantError
from llamapy.native import crew
from llamapy.quants import codec
from llamapy.quants.api import NEED_IMPORTANCE
from llamapy.quants.codec import Codec
from llamapy.tasks.importance_use import Importances
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.quantize_checks import LARGE, check_blocks
from llamapy.tasks.quantize_plan import Planned
from llamapy.tasks.rows import Bytes, Floats, Rows, compiled_for, to_f32
from llamapy.tasks.tensor_error import TensorError

PIECE = 1 << 20  # values of a piece; at least one row
_AHEAD = 2  # pieces a thread that may wait to be written

Made = tuple[Bytes, TensorError | None]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first..last of a tensor, all of one matrix if there are importances."""

    index: int
    planned: Planned
    rows: Rows
    first: int
    last: int
    importance: Floats | None


def encode(
    kind: type[Codec], values: Floats, out: Bytes, importance: Floats | None, rows: Rows, first: int
) -> None:
    """Rows of float32 to blocks at `out`, both contiguous; `first` is the first one's number.

    QuantError names the row that the type cannot take (ggml ends the process on it).
    """
    stopped = kind.encode(
        values.ctypes.data,
        out.ctypes.data,
        len(values),
        values.shape[1],
        0 if importance is None else importance.ctypes.data,
        codec.tables_address(kind),
    )
    if stopped:
        raise QuantError(
            f"{rows.file.path}: {rows.place(first + stopped - 1)} cannot be quantized to"
            f" {kind.name}",
            hint="its weights or importances are not finite, or far too large",
        )


def compile_for(tensors: Iterable[tuple[str, str]]) -> None:
    """Load what decodes and encodes these pairs of types, source and target, in this thread: Ctrl-C
    ends it there, in the threads of a pool it would be waited for.
    """
    pairs = set(tensors)
    sources, targets = sorted({pair[0] for pair in pairs}), sorted({pair[1] for pair in pairs})
    wanted = [one for source in sources for one in compiled_for(codec.get(source))]
    wanted += [(codec.get(target).encode, codec.ENCODE) for target in targets]
    crew.load(wanted, budget())


class Encoder:
    """Makes the data of all tensors of a plan. To be used in a `with`.

    sizes    the largest size in each tensor, by name (quantize_checks.check_inputs)
    measure  whether to find the errors of what is made: `errors`, by name in the output
    lenient  weights that overflow a type go to `warnings` and are no QuantError
    """

    def __init__(
        self,
        file: AnyFile,
        tensors: Sequence[Planned],
        threads: int,
        *,
        importances: Importances | None = None,
        sizes: Mapping[str, float] | None = None,
        measure: bool = False,
        lenient: bool = False,
    ) -> None:
        self.file, self.tensors = file, list(tensors)
        self.importances, self.sizes = importances, dict(sizes or {})
        self.measure, self.lenient = measure, lenient
        self.warnings: list[str] = []
        self.errors: dict[str, TensorError] = {}
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="llamapy-quantize")
        self._limit = _AHEAD * max(1, threads) + 1
        self._stop = threading.Event()
        self._own = threading.local()

    def items(self) -> Iterator[Iterator[Bytes]]:
        """The bytes of each tensor, in pieces, in the order of the plan. To be taken in order."""
        ahead: deque[tuple[int, Future[Made]]] = deque()
        pieces = self._pieces()

        def fill() -> None:
            while len(ahead) < self._limit:
                piece = next(pieces, None)
                if piece is None:
                    return
                ahead.append((piece.index, self._pool.submit(self._make, piece)))

        def of(index: int) -> Iterator[Bytes]:
            while True:
                fill()
                if not ahead or ahead[0][0] != index:
                    return
                made, error = ahead.popleft()[1].result()
                if error is not None:
                    name = self.tensors[index].name
                    self.errors.setdefault(name, TensorError()).merge(error)
                yield made

        return (of(i) for i in range(len(self.tensors)))

    def _pieces(self) -> Iterator[Piece]:
        for index, one in enumerate(self.tensors):
            rows = Rows(self.file, one.info)
            if not rows.n_rows:
                continue
            by_name = self.importances.by_name if self.importances else {}
            weights = by_name.get(one.info.name) if one.changes else None
            matrix = rows.by_matrix if weights else rows.n_rows
            step = max(1, PIECE // rows.n_per_row)
            for start in range(0, rows.n_rows, matrix):
                importance = weights[start // matrix] if weights else None
                end = min(start + matrix, rows.n_rows)
                for first in range(start, end, step):
                    yield Piece(index, one, rows, first, min(first + step, end), importance)

    def _make(self, piece: Piece) -> Made:
        """The bytes of a piece in the new type, and how far they are from what they stand for."""
        rows, one = piece.rows, piece.planned
        error = TensorError() if self.measure else None
        if not one.changes:
            if error is not None:
                error.add_equal((piece.last - piece.first) * rows.n_per_row)
            return rows.raw(piece.first, piece.last), error
        kind = codec.get(one.kind)
        importance = piece.importance
        if importance is None and kind.name in NEED_IMPORTANCE:
            importance = np.ones(rows.n_per_row, np.float32)
        out = np.empty((piece.last - piece.first, kind.row_bytes(rows.n_per_row)), np.uint8)
        careful = not self.sizes.get(one.info.name, np.inf) <= LARGE or rows.kind.n_values > 1
        for first in range(piece.first, piece.last, rows.step()):
            if self._stop.is_set():
                raise Aborted("stopped")
            last = min(first + rows.step(), piece.last)
            values = rows.floats(first, last, self._room("values", rows))
            made = out[first - piece.first : last - piece.first]
            encode(kind, values, made, importance, rows, first)
            if careful:
                self._check(rows, first, values, made, kind)
            if error is not None:
                got = self._room("decoded", rows)[: values.size]
                to_f32(made.reshape(-1), kind, got)
                error.add(values, got.reshape(values.shape), importance, first)
        return out, error

    def _room(self, name: str, rows: Rows) -> Floats:
        """Room for the rows of a step that belongs to this thread."""
        n = rows.step() * rows.n_per_row
        room: Floats | None = getattr(self._own, name, None)
        if room is None or room.size < n:
            room = np.empty(n, np.float32)
            setattr(self._own, name, room)
        return room

    def _check(
        self, rows: Rows, first: int, values: Floats, made: Bytes, kind: type[Codec]
    ) -> None:
        fault = check_blocks(rows, first, values, made, kind)
        if fault and not self.lenient:
            raise QuantError(
                f"{self.file.path}: {fault}", hint="--allow-nonfinite goes on all the same"
            )
        if fault:
            self.warnings.append(fault)

    def __enter__(self) -> Encoder:
        compile_for((one.source, one.kind) for one in self.tensors if one.changes)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the threads; after an error or Ctrl-C they stop at the next step."""
        if kind is not None:
            self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
