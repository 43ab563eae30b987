"""The CPU backend: turns a split into node records and lets native threads walk over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llamapy.backend.backend import (
    Backend,
    Buffer,
    BufferType,
    Program,
    aligned,
    host_memory,
    on_small_pages,
)
from llamapy.backend.cpu import record, sync
from llamapy.backend.cpu.step import Machine, Step, plan
from llamapy.backend.cpu.threads import Pool, budget, choose
from llamapy.core import settings
from llamapy.core.errors import Aborted
from llamapy.graph.tensor import Tensor
from llamapy.native import crew

HOST = BufferType("cpu")

_WALK = (int,) * 5  # what Python calls the walk with
CompileHook = Callable[[str, int, int], None]


class CPU(Backend):
    """`threads`: how many (None: the budget of this process); `activation_bits`: 8 or 16, or None
    for the setting. One CPU object serves one thread of Python at a time."""

    name = "cpu"
    buffer_type = HOST

    def __init__(
        self,
        threads: int | None = None,
        *,
        repack: bool = True,
        activation_bits: int | None = None,
        on_compile: CompileHook | None = None,
    ) -> None:
        self.n_threads = choose(threads)
        self.machine = Machine(
            self.n_threads, repack, activation_bits or settings.activation_bits()
        )
        self.pool = Pool(self.n_threads)
        self.on_compile = on_compile
        self._running: CpuProgram | None = None
        self._planned: dict[int, tuple[Tensor, tuple[Tensor, ...], list[Step]]] = {}

    def memory(self) -> tuple[int, int]:
        return host_memory()

    def allocate_sparse(self, n_bytes: int) -> Buffer | None:
        pages = on_small_pages(n_bytes)
        return None if pages is None else Buffer(HOST, pages)

    def supports_op(self, node: Tensor) -> bool:
        if node.op is None or not node.op.computes:
            return True
        steps = plan(node, self.machine)
        if steps is not None:
            self._planned[id(node)] = (node, node.src, steps)
        return steps is not None

    def supports_buffer(self, kind: BufferType) -> bool:
        return kind.host and kind.name in ("cpu", "mapped")

    def compile(self, nodes: Sequence[Tensor]) -> CpuProgram:
        return CpuProgram(self, self._steps(nodes))

    def wanted(self, nodes: Sequence[Tensor]) -> list[crew.Wanted]:
        """The compiled functions that these nodes need, each once."""
        can = [node for node in nodes if self.supports_op(node)]
        return _functions(self._steps(can))

    def _steps(self, nodes: Sequence[Tensor]) -> list[Step]:
        steps: list[Step] = []
        for node in nodes:
            if node.op is None or not node.op.computes or node.n_elements == 0:
                continue
            planned = self._plan(node)
            assert planned is not None, f"no kernel for {node!r}"
            for step in planned:
                step.name = step.name or node.name or _label(node)
                step.op, step.source = node.op.name, (node.src or (node,))[0].kind.name
            steps += planned
        self._planned.clear()
        return steps

    def _plan(self, node: Tensor) -> list[Step] | None:
        """The node's plan: the one that was made when it was asked about, if its sources are still
        the same."""
        asked, sources, steps = self._planned.get(id(node), (None, (), []))
        if asked is node and sources == node.src:
            return steps
        return plan(node, self.machine)

    def abort(self) -> None:
        """Make the program that runs now end soon; its `run` raises Aborted. May be called from
        any thread."""
        if self._running is not None:
            self._running.stop()

    def close(self) -> None:
        self.pool.close()


class CpuProgram(Program):
    """Node records with everything they point to."""

    def __init__(self, device: CPU, steps: Sequence[Step]) -> None:
        self.device = device
        self.steps = _without_repeats(steps)
        n = len(self.steps)
        self._shared = aligned(max([s.shared for s in self.steps], default=0) + 64)
        private = max([s.private for s in self.steps], default=0)
        private = (private + 127) // 64 * 64
        self._private = aligned(private * device.n_threads + 64)
        self._counters = aligned(64 * max(n, 1)).view(np.int64)
        self._sync = aligned(sync.SYNC_BYTES).view(np.int64)
        self.records = aligned(record.BYTES * max(n, 1)).view(np.int64).reshape(-1, record.WORDS)
        crew.load(_functions(self.steps), budget(), device.on_compile)
        for i, step in enumerate(self.steps):
            row = self.records[i]
            record.write(row, step.params, step.tensors)
            row[record.KERNEL] = _address(step)
            row[record.COUNTER] = self._counters.ctypes.data + 64 * i
            row[record.SHARED] = self._shared.ctypes.data
            row[record.PRIVATE] = self._private.ctypes.data
            row[record.PRIVATE_BYTES] = private
        self.records[:n, record.BARRIER] = _barriers(self.steps)
        self._walk = sync.walk.entry(_WALK)

    def run(self) -> None:
        self._counters[:] = 0
        self._sync[:] = 0
        arguments = (self.records.ctypes.data, len(self.steps))
        words, nth, walk = self._sync.ctypes.data, self.device.n_threads, self._walk
        timing: tuple[int, ...] = ()
        if self.device.trace is not None:
            stamps = np.zeros((nth, len(self.steps), 2), np.int64)
            walk, timing = (
                sync.timed_walk,
                (stamps.ctypes.data, time.CLOCK_MONOTONIC),
            )
        self.device._running = self
        try:
            self.device.pool.run(lambda ith: walk(*arguments, ith, nth, words, *timing), self.stop)
        finally:
            self.device._running = None
        if self._sync[sync.STOP // 8]:
            raise Aborted("the computation was interrupted")
        if self.device.trace is not None:
            self.device.trace += [
                (step.name, step.op, step.source, seconds, spans)
                for step, seconds, spans in zip(self.steps, *_spent(stamps))
            ]

    def stop(self) -> None:
        self._sync[sync.STOP // 8] = 1


def _functions(steps: Sequence[Step]) -> list[crew.Wanted]:
    kernels = {(id(s.kernel), s.types): (s.kernel, s.types) for s in steps}
    return [(sync.walk, _WALK), *kernels.values()]


def _label(node: Tensor) -> str:
    """What a nameless node is called in traces: its first source that has a name, or its number."""
    return next((source.name for source in node.src if source.name), f"#{node.serial}")


def _spent(stamps: np.ndarray[Any, Any]) -> tuple[list[float], list[list[list[int]]]]:
    """Seconds from the start of each step to that of the next, and when each thread was at work on
    it."""
    first, ended = stamps[0, :, 0], stamps[:, -1:, 1].max(0)
    return (np.diff(np.append(first, ended)) / 1e9).tolist(), stamps.transpose(1, 0, 2).tolist()


def _address(step: Step) -> int:
    return step.kernel.address(*step.types)


def _without_repeats(steps: Sequence[Step]) -> list[Step]:
    """Drop steps that would leave in the shared scratch what is there already (q, k and v share
    their activations)."""
    kept: list[Step] = []
    there: object = None
    for step in steps:
        if step.leaves is not None and step.leaves == there:
            continue
        if step.shared and step.takes is None:
            there = step.leaves
        assert step.takes is None or step.takes == there, step
        kept.append(step)
    return kept


def _spans(tensors: Sequence[Tensor | None]) -> list[tuple[int, int]]:
    return [(t.data, t.data + t.n_bytes) for t in tensors if t is not None and t.data is not None]


def _overlap(some: list[tuple[int, int]], others: list[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in some for c, d in others)


def _barriers(steps: Sequence[Step]) -> list[int]:
    """1 after each step that the next one must wait for: it reads, or overwrites, what has been
    touched since the last."""
    flags = [1] * len(steps)
    written: list[tuple[int, int]] = []
    read: list[tuple[int, int]] = []
    for i, step in enumerate(steps):
        writes, reads = _spans(step.tensors[:1]), _spans(step.tensors[1:])
        if step.leaves is not None or (step.shared and step.takes is None):
            writes = [*writes, (-1, 0)] if step.tensors[0] is not None else [(-1, 0)]
        elif step.takes is not None:
            reads = [*reads, (-1, 0)]
        if i and not (
            _overlap(reads, written) or _overlap(writes, written) or _overlap(writes, read)
        ):
            flags[i - 1] = 0
        else:
            written, read = [], []
        written += writes
        read += reads
    return flags
