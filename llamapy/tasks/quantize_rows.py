"""The data of a quantized file, tensor by tensor: read, decoded, encoded, on a few threads.

Pieces of rows are worked on ahead of the one that is written, across tensors, and handed out in
order: memory is a few pieces, and the bytes do not depend on the number of threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from llamapy.core.errors import Aborted, QuantError
from llamapy.quants import codec
from llamapy.quants.codec import Codec
from llamapy.tasks.importance_use import Importances
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.quantize_checks import LARGE, check_blocks
from llamapy.tasks.quantize_plan import Planned
from llamapy.tasks.rows import Bytes, Floats, Rows

PIECE = 1 << 20  # values of a piece; at least one row
_AHEAD = 2  # pieces a thread that may wait to be written

Measure = Callable[[Planned, Floats, Bytes, Floats | None], None]
"""Told of each step, on the thread that made it: tensor, values, blocks, importances."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows first..last of a tensor, all of one matrix if there are importances."""

    index: int
    planned: Planned
    rows: Rows
    first: int
    last: int
    importance: Floats | None


def encode(kind: type[Codec], values: Floats, out: Bytes, importance: Floats | None) -> None:
    """Rows of float32 to blocks at `out`, both contiguous; nothing is checked."""
    kind.encode(
        values.ctypes.data,
        out.ctypes.data,
        len(values),
        values.shape[1],
        0 if importance is None else importance.ctypes.data,
        codec.tables_address(kind),
    )


class Encoder:
    """Makes the data of all tensors of a plan. To be used in a `with`.

    sizes    the largest size in each tensor, by name (quantize_checks.check_inputs)
    measure  see Measure
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
        measure: Measure | None = None,
        lenient: bool = False,
    ) -> None:
        self.file, self.tensors = file, list(tensors)
        self.importances, self.sizes = importances, dict(sizes or {})
        self.measure, self.lenient = measure, lenient
        self.warnings: list[str] = []
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="llamapy-quantize")
        self._limit = _AHEAD * max(1, threads) + 1
        self._stop = threading.Event()
        self._own = threading.local()

    def items(self) -> Iterator[Iterator[Bytes]]:
        """The bytes of each tensor, in pieces, in the order of the plan. To be taken in order."""
        ahead: deque[tuple[int, Future[Bytes]]] = deque()
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
                yield ahead.popleft()[1].result()

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

    def _make(self, piece: Piece) -> Bytes:
        """The bytes of a piece in the new type."""
        if self._stop.is_set():
            raise Aborted("stopped")
        rows, one = piece.rows, piece.planned
        if not one.changes:
            raw = rows.raw(piece.first, piece.last)
            if self.measure is not None:
                self._measure_copy(piece, raw)
            return raw
        kind = codec.get(one.kind)
        importance = piece.importance
        if importance is None and kind.name in codec_needs():
            importance = np.ones(rows.n_per_row, np.float32)
        out = np.empty((piece.last - piece.first, kind.row_bytes(rows.n_per_row)), np.uint8)
        careful = not self.sizes.get(one.info.name, np.inf) <= LARGE or rows.kind.n_values > 1
        for first in range(piece.first, piece.last, rows.step()):
            if self._stop.is_set():
                raise Aborted("stopped")
            last = min(first + rows.step(), piece.last)
            values = rows.floats(first, last, self._scratch(rows))
            made = out[first - piece.first : last - piece.first]
            encode(kind, values, made, importance)
            if careful:
                self._check(rows, first, values, made, kind)
            if self.measure is not None:
                self.measure(one, values, made, importance)
        return out

    def _measure_copy(self, piece: Piece, raw: Bytes) -> None:
        rows = piece.rows
        assert self.measure is not None
        for first in range(piece.first, piece.last, rows.step()):
            last = min(first + rows.step(), piece.last)
            values = rows.floats(first, last, self._scratch(rows))
            at = (first - piece.first) * rows.row_bytes
            made = raw[at : at + (last - first) * rows.row_bytes].reshape(last - first, -1)
            self.measure(piece.planned, values, made, None)

    def _scratch(self, rows: Rows) -> Floats:
        """Room for decoded rows that belongs to this thread."""
        n = rows.step() * rows.n_per_row
        room: Floats | None = getattr(self._own, "room", None)
        if room is None or room.size < n:
            room = self._own.room = np.empty(n, np.float32)
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


def codec_needs() -> frozenset[str]:
    """Types whose encoder cannot do without importances."""
    from llamapy.quants import api

    return api.NEED_IMPORTANCE
