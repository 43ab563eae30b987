"""Execution: a planned graph with memory becomes programs that run again and again.

Knows the order of splits and what must be copied between them; does not know how anything is
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llamapy.backend.backend import Backend, view
from llamapy.engine.memory import Layout
from llamapy.engine.schedule import Plan, Schedule, Split
from llamapy.graph import Graph, Tensor

Array = np.ndarray[Any, Any]


class Engine:
    """Backends with the memory that graphs run in. Belongs to one thread, like the context that
    owns it."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = list(backends)
        self.schedule = Schedule(self.backends)

    @property
    def n_bytes(self) -> int:
        """Bytes of the compute buffers."""
        return self.schedule.memory.n_bytes

    def reserve(self, graph: Graph) -> Layout:
        """Make the compute buffers large enough for a worst-case graph, so that no later step
        allocates."""
        return self.schedule.reserve(graph)

    def prepare(self, graph: Graph) -> Execution:
        """Plan the graph, give it memory and compile it. Its tensors have addresses from here on.

        All graphs of an engine share the buffers: what one computed is gone when another has run.
        """
        return Execution(self.schedule.allocate(graph))

    def abort(self) -> None:
        """Make the run that is under way end soon: it raises Aborted. From any thread."""
        for backend in self.backends:
            backend.abort()


class Execution:
    """A compiled graph: set the inputs, run, get the outputs; as often as wanted."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.programs = [split.backend.compile(split.nodes) for split in plan.splits]
        self._inputs: dict[int, Array] = {}  # {id(tensor): its numbers}, of those in host memory
        self._experts: dict[int, Tensor | None] = {}
        for split in plan.splits:
            copy, ids = _chosen_experts(split, plan)
            if copy is not None:
                self._experts[id(copy)] = ids

    def run(self) -> None:
        """Compute everything once. Raises Aborted when a backend was told to stop."""
        before: Backend | None = None
        for split, program in zip(self.plan.splits, self.programs):
            if before is not None:
                before.synchronize()
            for source, copy in zip(split.inputs, split.copies):
                self._copy(split, source, copy)
            program.run()
            before = split.backend
        if before is not None:
            before.synchronize()

    def set(self, tensor: Tensor, values: Array) -> None:
        """Fill an input. values: as many elements as the tensor has, of its own number type."""
        values = np.asarray(values)
        assert values.size == tensor.n_elements, (tensor, values.shape)
        there = self._inputs.get(id(tensor))
        if there is None:
            assert tensor.buffer is not None
            if not tensor.buffer.kind.host:
                data = np.ascontiguousarray(values, tensor.kind.block)
                return self.plan.backend(tensor).set_tensor(tensor, data)
            there = view(tensor).view(tensor.kind.block)
            self._inputs[id(tensor)] = there
        there[...] = values.reshape(-1)
        return None

    def get(self, tensor: Tensor) -> Array:
        """A copy of a contiguous tensor of plain numbers, shape ne[::-1], of its own number
        type."""
        data = self.plan.backend(tensor).get_tensor(tensor)
        return data.view(tensor.kind.block).reshape(tensor.ne[::-1])

    def describe(self, *, nodes: bool = False) -> str:
        """The splits for a person."""
        return self.plan.describe(nodes=nodes)

    def _copy(self, split: Split, source: Tensor, copy: Tensor) -> None:
        ids = self._experts.get(id(copy))
        if ids is None:
            split.backend.copy_tensor(source, copy)
            return
        there, here, size = view(source), view(copy), source.nb[2]
        for expert in np.unique(self.get(ids)):
            part = slice(expert * size, (expert + 1) * size)
            here[part] = there[part]


def _chosen_experts(split: Split, plan: Plan) -> tuple[Tensor | None, Tensor | None]:
    """A split that begins with a mul_mat_id needs only the matrices that are chosen: their copy and
    the ids (known before the split) that choose. None if another node reads the copy too."""
    first = split.nodes[0]
    if first.op is None or first.op.name != "mul_mat_id" or first.src[0] not in split.copies:
        return None, None
    weights, _, ids = first.src
    n_readers = sum(weights in node.src for node in plan.nodes)
    ids = split.inputs[split.copies.index(ids)] if ids in split.copies else ids
    return (weights, ids) if n_readers == 1 and ids.contiguous else (None, None)
