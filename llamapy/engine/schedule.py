"""The scheduler: decides which backend computes each node, and cuts the graph into splits.

Backends come in order of priority, accelerators first, the one that can do everything (CPU) last.
The passes are those of ggml's scheduler:

1. fixed places: tensors that have memory, inputs (last backend), nodes whose weights have memory
2. neighbours: accelerators spread down and up the list of nodes, never past the last backend; then
the rest 3. upgrade to a backend of higher priority with the same memory; nodes still without a
place go to the
   backend that can read most of their sources
4. leftovers: views are where their bytes are, sources without a place where their first user is
5. cut where the backend changes, or where a weight that the backend cannot read would pile up on
other copies;
   what a split cannot read is copied into its backend's memory first
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llamapy.backend.backend import Backend, BufferType
from llamapy.core.errors import LlamapyError
from llamapy.engine.memory import Allocator, Layout, owner
from llamapy.graph import INPUT, Graph, Tensor

MAX_BACKENDS = 16
NOT_BY_WEIGHT = ("rope", "flash_attn")  # their weights (factors, sinks) are too small to decide


@dataclass
class Split:
    """Neighbouring nodes on one backend. `copies[i]`, in its memory, stands for `inputs[i]`, which
    it cannot read."""

    backend: Backend
    nodes: list[Tensor] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    copies: list[Tensor] = field(default_factory=list)


@dataclass
class Plan:
    """A graph cut into splits. `nodes` is the order for the allocator: views and copies
    included."""

    backends: Sequence[Backend]
    splits: list[Split]
    leafs: list[Tensor]
    nodes: list[Tensor]
    place: dict[int, int]  # {id(tensor): number of its backend}
    why: dict[int, str]  # {id(tensor): the pass that placed it}

    def backend(self, tensor: Tensor) -> Backend:
        """Whose memory the tensor is in."""
        return self.backends[self.place[id(owner(tensor))]]

    def home(self, tensor: Tensor) -> BufferType:
        return self.backend(tensor).buffer_type

    def describe(self, *, nodes: bool = False) -> str:
        """The splits for a person, a line each; with `nodes`, a line for each node and why it is
        there."""
        lines = []
        for i, split in enumerate(self.splits):
            line = f"split {i} on {split.backend.name}: {len(split.nodes)} nodes"
            if split.inputs:
                line += ", copies in " + ", ".join(
                    f"{_name(t)} ({t.n_bytes:,} B)" for t in split.inputs
                )
            lines.append(line)
            for node in split.nodes if nodes else ():
                why, sources = self.why[id(node)], ", ".join(map(_name, node.src))
                lines.append(f"  {_name(node)} = {_op(node)}({sources})  [{why}]")
        return "\n".join(lines)


class Schedule:
    """Plans graphs for a list of backends and keeps the memory that they run in."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        if not 0 < len(backends) <= MAX_BACKENDS:
            raise LlamapyError(
                f"between 1 and {MAX_BACKENDS} backends are needed, got {len(backends)}"
            )
        self.backends = list(backends)
        self.memory = Allocator(self.backends)

    def plan(self, graph: Graph, *, ask: bool = True) -> Plan:
        """Place and cut. In the graph, sources that a split cannot read are exchanged for their
        copies. ask: whether the backends are asked what they can compute."""
        _without_copies(graph)
        places = _Places(self.backends, self.memory, graph, ask)
        places.fix()
        places.spread()
        places.improve()
        places.leftovers()
        return _Cut(places).run()

    def reserve(self, graph: Graph) -> Layout:
        """Make the buffers large enough for this (worst-case) graph. A backend alone gets all of
        it, and is asked when the graph is to run."""
        plan = self.plan(graph, ask=len(self.backends) > 1)
        return self.memory.reserve(plan, plan.home)

    def allocate(self, graph: Graph) -> Plan:
        """Plan the graph and give it memory; after this it can be compiled."""
        plan = self.plan(graph)
        self.memory.allocate(plan, plan.home)
        return plan


class _Places:
    """Passes 1 to 4: {id(tensor): number of a backend}."""

    def __init__(self, backends: list[Backend], memory: Allocator, graph: Graph, ask: bool) -> None:
        self.backends, self.memory, self.graph, self.ask = backends, memory, graph, ask
        self.last = len(backends) - 1
        self.place: dict[int, int] = {}
        self.why: dict[int, str] = {}
        self._supports: dict[tuple[int, int], bool] = {}
        self.computed = [n for n in graph.nodes if n.op is not None and n.op.computes]

    def supports(self, at: int, node: Tensor) -> bool:
        """Whether backend `at` can compute this node; leafs and views are no work."""
        key = (at, id(node))
        if key not in self._supports:
            work = self.ask and node.op is not None and node.op.computes
            self._supports[key] = not work or self.backends[at].supports_op(node)
        return self._supports[key]

    def readable(self, at: int, tensor: Tensor) -> bool:
        """Whether backend `at` can read the tensor where it is or will be."""
        own = owner(tensor)
        if self.memory.is_external(own):
            return self.backends[at].supports_buffer(own.buffer.kind)
        home = self.place.get(id(tensor), self.place.get(id(own)))
        return home is not None and self.backends[at].supports_buffer(
            self.backends[home].buffer_type
        )

    def put(self, tensor: Tensor, at: int, why: str) -> None:
        self.place[id(tensor)] = at
        self.why[id(tensor)] = why

    # -- pass 1
    # -------------------------------------------------------------------------------------------

    def fix(self) -> None:
        for tensor in (*self.graph.leafs, *self.graph.nodes):
            self._fix(tensor)

    def _fix(self, tensor: Tensor) -> None:
        if self.memory.is_external(tensor):
            at = self._by_buffer(tensor, tensor)
            if at is None and tensor.op is None:
                return  # a weight that nobody reads in place: it will be copied
            if at is None:
                kind = owner(tensor).buffer.kind.name
                raise LlamapyError(
                    f"no backend computes {_op(tensor)} into memory of type {kind} ({tensor!r})"
                )
            self.put(tensor, at, "has memory")
        elif tensor.flags & INPUT:
            self.put(tensor, self.last, "input")
        elif tensor.op is not None and tensor.op.name not in NOT_BY_WEIGHT:
            self._by_weight(tensor)

    def _by_buffer(self, tensor: Tensor, node: Tensor) -> int | None:
        """Who computes `node` beside this tensor: whose own memory it is in, for plain memory the
        last backend, else the first that can read it."""
        kind = owner(tensor).buffer.kind
        can = [i for i in range(self.last + 1) if self.supports(i, node) and self._reads(i, kind)]
        own = [i for i in can if kind in self.backends[i].buffer_types()]
        host = [self.last] if kind.host and self.last in can else []
        return next(iter(own + host + can), None)

    def _reads(self, at: int, kind: BufferType) -> bool:
        return self.backends[at].supports_buffer(kind)

    def _by_weight(self, node: Tensor) -> None:
        for source in node.src:
            own = owner(source)
            if not self.memory.is_external(own) or not own.buffer.weights:
                continue
            at = self._by_buffer(source, node)
            if at == self.last and own.buffer.kind.host:
                for b in range(self.last):
                    if self.supports(b, node) and self.backends[b].offload_op(node):
                        return self.put(node, b, "offloaded")
            if at is not None:
                self.put(node, at, "weight")
            return None
        return None

    # -- pass 2
    # -------------------------------------------------------------------------------------------

    def spread(self) -> None:
        for skip_last in (True, False):
            for nodes, why in ((self.computed, "from above"), (self.computed[::-1], "from below")):
                self._spread(nodes, why, skip_last)

    def _spread(self, nodes: list[Tensor], why: str, skip_last: bool) -> None:
        at: int | None = None
        for node in nodes:
            placed = self.place.get(id(node))
            if placed is not None:
                at = None if skip_last and placed == self.last else placed
            elif at is not None and self.supports(at, node):
                self.put(node, at, why)

    # -- pass 3
    # -------------------------------------------------------------------------------------------

    def improve(self) -> None:
        for node in self.computed:
            placed = self.place.get(id(node))
            if placed is None:
                self._where_most_is_readable(node)
                continue
            for b in range(placed):
                same = self.backends[b].buffer_type == self.backends[placed].buffer_type
                if same and self.supports(b, node) and all(self.readable(b, s) for s in node.src):
                    self.put(node, b, "upgraded")
                    break

    def _where_most_is_readable(self, node: Tensor) -> None:
        can = [b for b in range(len(self.backends)) if self.supports(b, node)]
        if not can:
            raise LlamapyError(f"no backend computes {node!r}")
        best = max(can, key=lambda b: sum(self.readable(b, s) for s in node.src))
        self.put(node, best, "reads most")

    # -- pass 4
    # -------------------------------------------------------------------------------------------

    def leftovers(self) -> None:
        for node in self.graph.nodes:
            self._with_its_bytes(node)
            for source in node.src:
                self._with_its_bytes(source)
                if id(source) not in self.place:
                    at = self.place.get(id(node), self.last)
                    self.put(source, at, "first user")
                    self.place.setdefault(id(owner(source)), at)
            self._with_its_bytes(node)
        for leaf in self.graph.leafs:
            if id(leaf) not in self.place:
                self.put(leaf, self.last, "unused")

    def _with_its_bytes(self, tensor: Tensor) -> None:
        """A view, or an op that writes into one, can only be where the bytes are."""
        at = None if tensor.view_src is None else self.place.get(id(tensor.view_src))
        if at is None or self.place.get(id(tensor)) == at or self.memory.is_external(tensor):
            return
        if not self.supports(at, tensor):
            raise LlamapyError(
                f"{self.backends[at].name} cannot compute {_op(tensor)} in its memory"
            )
        self.put(tensor, at, "view")


class _Cut:
    """Pass 5: splits, and copies of what they cannot read."""

    def __init__(self, places: _Places) -> None:
        self.places = places
        self.splits: list[Split] = []
        self.order: list[Tensor] = []
        self.copies: dict[tuple[int, int], Tensor] = {}

    def run(self) -> Plan:
        places = self.places
        starts: list[int] = []  # where in the order each split's copies belong
        at = -1
        for node in places.graph.nodes:
            if node.op is None or not node.op.computes:
                self.order.append(node)
                continue
            home = places.place[id(node)]
            if home != at or self._weights_pile_up(node, at):
                at = home
                self.splits.append(Split(places.backends[at]))
                starts.append(len(self.order))
            split = self.splits[-1]
            node.src = tuple(self._source(s, at, split) for s in node.src)
            split.nodes.append(node)
            self.order.append(node)
        for start, split in reversed(list(zip(starts, self.splits))):
            self.order[start:start] = split.copies
        return Plan(
            places.backends, self.splits, places.graph.leafs, self.order, places.place, places.why
        )

    def _weights_pile_up(self, node: Tensor, at: int) -> bool:
        """A new split lets the memory of copied weights be used again."""
        return bool(self.splits[-1].inputs) and any(
            self.places.memory.is_external(s)
            and owner(s).buffer.weights
            and not self.places.readable(at, s)
            and (id(s), at) not in self.copies
            for s in node.src
        )

    def _source(self, source: Tensor, at: int, split: Split) -> Tensor:
        """The source, or its copy in memory that backend `at` can read."""
        if self.places.readable(at, source):
            return source
        copy = self.copies.get((id(source), at))
        if copy is None:
            name = f"{split.backend.name}#{_name(source)}#0"
            copy = Tensor(source.kind, source.ne, nb=source.nb, name=name, src=(source,))
            self.copies[(id(source), at)] = copy
            self.places.put(copy, at, "copy")
            split.inputs.append(source)
            split.copies.append(copy)
        return copy


def _without_copies(graph: Graph) -> None:
    """Undo the exchange of an earlier plan: only copies have sources but no op."""
    for node in graph.nodes:
        if any(s.op is None and s.src for s in node.src):
            node.src = tuple(s.src[0] if s.op is None and s.src else s for s in node.src)


def _op(tensor: Tensor) -> str:
    return tensor.op.name if tensor.op is not None else "leaf"


def _name(tensor: Tensor) -> str:
    return tensor.name or f"{_op(tensor)}.{tensor.serial}"
