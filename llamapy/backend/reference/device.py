"""The reference backend: runs each op's numpy meaning. Slow, complete, and the truth for the
others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from llamapy.backend.backend import Backend, Buffer, BufferType, Program, host_memory
from llamapy.backend.reference.values import Rows, blocks, can_encode, decode, encode
from llamapy.core import settings
from llamapy.core.errors import Aborted
from llamapy.graph.op import Op
from llamapy.graph.tensor import Tensor

Array = np.ndarray[Any, Any]
Source = Callable[[], Any]

# In truth plain memory; that the CPU backend is not told makes splits and copies real.
MEMORY = BufferType("reference", host=False)


class Reference(Backend):
    """Runs numpy meanings.

    cache_bytes  how much of the weights is kept decoded; what does not fit is decoded at every use.
                 None takes LLAMAPY_REFERENCE_CACHE
    reads_host   whether it reads plain memory (mapped files) in place; False makes it behave like a
                 device with memory of its own
    """

    name = "reference"
    buffer_type = MEMORY

    def __init__(self, *, cache_bytes: int | None = None, reads_host: bool = True) -> None:
        self.reads_host = reads_host
        limit = settings.reference_cache_bytes() if cache_bytes is None else cache_bytes
        self.weights = _Weights(limit)
        self.stopped = False

    def memory(self) -> tuple[int, int]:
        return host_memory()

    def supports_op(self, node: Tensor) -> bool:
        return can_encode(node.kind)

    def supports_buffer(self, kind: BufferType) -> bool:
        return kind == self.buffer_type or (self.reads_host and kind.host)

    def compile(self, nodes: Sequence[Tensor]) -> ReferenceProgram:
        return ReferenceProgram(self, nodes)

    def abort(self) -> None:
        self.stopped = True


class ReferenceProgram(Program):
    """The computing nodes with views of their memory, made once."""

    def __init__(self, device: Reference, nodes: Sequence[Tensor]) -> None:
        self.device = device
        self.steps = [_Step(n, device.weights) for n in nodes if n.op is not None and n.op.computes]

    def run(self) -> None:
        device = self.device
        device.stopped = False
        with np.errstate(all="ignore"):
            for step in self.steps:
                if device.stopped:
                    raise Aborted("the computation was interrupted")
                start = perf_counter()
                step.run()
                if device.trace is not None:
                    device.trace.append((*step.label, perf_counter() - start))


class _Step:
    """One node: where its sources come from, and where its result goes."""

    def __init__(self, node: Tensor, weights: _Weights) -> None:
        assert node.op is not None
        self.op: Op = node.op
        self.kind = node.kind
        self.result = blocks(node)
        self.sources = [_source(node, i, weights) for i in range(len(node.src))]
        self.label = (
            node.name or f"#{node.serial}",
            node.op.name,
            (node.src or (node,))[0].kind.name,
        )

    def run(self) -> None:
        numbers, index = self.op.part(*(source() for source in self.sources))
        self.result[index] = encode(self.kind, numbers)


def _source(node: Tensor, i: int, weights: _Weights) -> Source:
    """What gives the numbers of source i when the node runs."""
    source = node.src[i]
    assert node.op is not None
    if node.op.in_view and source.data == node.data and source.same_layout(node):
        stand_in = np.broadcast_to(np.float32(0), source.ne[::-1])  # it is written, not read
        return lambda: stand_in
    if source.buffer.weights:
        whole = i not in node.op.by_rows
        return lambda: weights.get(source, whole)
    if i in node.op.by_rows:
        rows = Rows(source)
        return lambda: rows
    raw = blocks(source)
    return lambda: decode(source.kind, raw)


class _Weights:
    """Decoded weights, kept as long as their buffer lives."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._kept: WeakKeyDictionary[Buffer, dict[Any, Array]] = WeakKeyDictionary()

    def get(self, tensor: Tensor, whole: bool) -> Any:
        """The numbers of a weight. Without `whole` only some rows are wanted, which is not worth
        keeping."""
        kept = self._kept.setdefault(tensor.buffer, {})
        key = (tensor.data, tensor.kind.name, tensor.ne, tensor.nb)
        numbers = kept.get(key)
        if numbers is not None:
            return numbers
        if not whole:
            return Rows(tensor)
        numbers = decode(tensor.kind, blocks(tensor))
        if tensor.kind.name != "f32" and self.n_bytes + numbers.nbytes <= self.limit:
            kept[key] = numbers
        return numbers

    @property
    def n_bytes(self) -> int:
        return sum(n.nbytes for kept in self._kept.values() for n in kept.values())
