"""Two files of one model beside each other: how far the values of each tensor are apart.

The first file is the truth. Tensors may have any types; those that only one file has, or that have
other sizes, are told apart and not compared. Reads pieces; prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from llamapy.backend.cpu import threads as cpu_threads
from llamapy.gguf.header import TensorInfo
from llamapy.quants import codec
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.mixes import reading_order
from llamapy.tasks.quantize_rows import PIECE
from llamapy.tasks.rows import Rows, same_shape
from llamapy.tasks.tensor_error import TensorError


@dataclass(frozen=True)
class Compared:
    """One tensor of both files."""

    name: str
    shape: tuple[int, ...]
    before: str  # its type in the first file
    after: str
    n_bytes: int  # in the second file
    error: TensorError


@dataclass
class Comparison:
    """What two files have in common, and what not."""

    tensors: list[Compared] = field(default_factory=list)
    only_in_first: list[str] = field(default_factory=list)
    only_in_second: list[str] = field(default_factory=list)
    other_shape: list[str] = field(default_factory=list)

    @property
    def total(self) -> TensorError:
        """All tensors together."""
        whole = TensorError()
        for one in self.tensors:
            whole.merge(one.error)
        return whole


def compare(
    a: AnyFile,
    b: AnyFile,
    *,
    threads: int = 0,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Comparison:
    """Compare all tensors; on_progress: tensor, bytes of `a` looked at, bytes in all."""
    found = Comparison()
    pairs: list[tuple[TensorInfo, TensorInfo]] = []
    for info in sorted(a.tensors, key=lambda info: reading_order(info.name)):
        if info.name not in b:
            found.only_in_first.append(info.name)
        elif same_shape(info, b.tensor(info.name)):
            pairs.append((info, b.tensor(info.name)))
        else:
            found.other_shape.append(info.name)
    found.only_in_second = [info.name for info in b.tensors if info.name not in a]
    total, done = sum(info.n_bytes for info, _ in pairs), 0
    with ThreadPoolExecutor(cpu_threads.choose(threads)) as pool:
        for one, other in pairs:
            error = TensorError()
            for part in pool.map(lambda piece: _part(*piece), _pieces(a, b, one, other)):
                error.merge(part)
            names = codec.get(one.type_id).name, codec.get(other.type_id).name
            found.tensors.append(Compared(one.name, one.ne, *names, other.n_bytes, error))
            done += one.n_bytes
            if on_progress is not None:
                on_progress(one.name, done, total)
    return found


def _pieces(
    a: AnyFile, b: AnyFile, one: TensorInfo, other: TensorInfo
) -> Iterator[tuple[Rows, Rows, int, int]]:
    x, y = Rows(a, one), Rows(b, other)
    step = max(1, PIECE // x.n_per_row) if x.n_per_row else 1
    for first in range(0, x.n_rows, step):
        yield x, y, first, min(first + step, x.n_rows)


def _part(x: Rows, y: Rows, first: int, last: int) -> TensorError:
    error = TensorError()
    for start in range(first, last, x.step()):
        end = min(start + x.step(), last)
        if x.kind is y.kind and np.array_equal(x.raw(start, end), y.raw(start, end)):
            error.add_equal((end - start) * x.n_per_row)
        else:
            values, others = x.floats(start, end, x.scratch()), y.floats(start, end, y.scratch())
            error.add(values, others, None, start)
    return error
