"""The graph allocator: gives every result its place in one buffer a kind of memory, and reuses
places.

Knows lifetimes and sizes; does not know what is computed. The rules are those of ggml's graph
allocator: a place is free again when the last reader is done (reading a view reads what it shows);
the best-fitting free block is taken; a result may take the place of a source that nobody else
reads. Inputs are placed first and outputs last for ever: neither is freed or written over. Tensors
that have memory are left alone.
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakSet

from llamapy.backend.backend import Backend, Buffer, BufferType
from llamapy.graph import INPUT, OUTPUT, Tensor

Home = Callable[[Tensor], BufferType]


class Order(Protocol):
    """What is allocated: leafs (inputs) and nodes in the order of execution."""

    leafs: list[Tensor]
    nodes: list[Tensor]


class Pool:
    """Offsets in one buffer. `top` is the end of what is in use, `peak` the most that it ever
    was."""

    def __init__(self, alignment: int = 64) -> None:
        self.alignment = alignment
        self.top = self.peak = 0
        # (offset, size) of free blocks by offset; none touch, none ends at top
        self._free: list[tuple[int, int]] = []

    def size(self, tensor: Tensor) -> int:
        """Bytes that the tensor takes, rounded up to the alignment."""
        return max(1, -(-tensor.n_bytes // self.alignment)) * self.alignment

    def take(self, n_bytes: int) -> int:
        """The offset of the smallest free block that is large enough, else the top."""
        fits = [(size, at) for at, size in self._free if size >= n_bytes]
        if not fits:
            at, self.top = self.top, self.top + n_bytes
            self.peak = max(self.peak, self.top)
            return at
        size, at = min(fits)
        self._free.remove((at, size))
        if size > n_bytes:
            insort(self._free, (at + n_bytes, size - n_bytes))
        return at

    def give(self, at: int, n_bytes: int) -> None:
        """Free a block and merge it with free neighbours; what is free at the top lowers it."""
        i = bisect(self._free, (at, n_bytes))
        if i < len(self._free) and self._free[i][0] == at + n_bytes:
            n_bytes += self._free.pop(i)[1]
        if i > 0 and sum(self._free[i - 1]) == at:
            before, size = self._free.pop(i - 1)
            at, n_bytes = before, size + n_bytes
        if at + n_bytes == self.top:
            self.top = at
        else:
            insort(self._free, (at, n_bytes))


@dataclass
class Layout:
    """Where everything of one graph goes.

    places     {id(tensor): (kind of memory, offset)} for tensors that own bytes
    peak       {kind of memory: bytes needed}
    total      bytes of all placed tensors together, as if nothing were reused
    inplace    how many results took the place of a source
    """

    places: dict[int, tuple[BufferType, int]] = field(default_factory=dict)
    peak: dict[BufferType, int] = field(default_factory=dict)
    total: int = 0
    inplace: int = 0


def owner(tensor: Tensor) -> Tensor:
    """The tensor that owns the bytes: itself, or what it is a view of."""
    return tensor if tensor.view_src is None else tensor.view_src


def lay_out(graph: Order, home: Home, is_placed: Callable[[Tensor], bool]) -> Layout:
    """Plan the memory of a graph. `home` says which kind of memory a tensor gets."""
    return _Planner(graph, home, is_placed).run()


class _Planner:
    """One pass over the nodes with what it needs to know about lifetimes."""

    def __init__(self, graph: Order, home: Home, is_placed: Callable[[Tensor], bool]) -> None:
        self.graph, self.home, self.is_placed = graph, home, is_placed
        self.layout = Layout()
        self.pools: dict[BufferType, Pool] = {}
        self.reads: dict[int, int] = {}  # how often a tensor's bytes are read, through views too
        self.last: dict[int, int] = {}  # the last node that touches them
        self.kept: set[int] = set()  # inputs and outputs, and whose bytes another took over
        self._count()

    def _count(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            own = owner(node)
            self.last[id(own)] = i
            if node.flags & OUTPUT:
                self.kept.add(id(own))
            if node.op is not None and not node.op.computes:
                continue  # a view reads nothing; who reads it does
            for source in node.src:
                key = id(owner(source))
                self.reads[key] = self.reads.get(key, 0) + 1
                self.last[key] = i

    def run(self) -> Layout:
        for leaf in (*self.graph.leafs, *(n for n in self.graph.nodes if n.flags & INPUT)):
            self.kept.add(id(leaf))
            if self._needs_place(leaf):
                self._take(leaf)
        ends: dict[int, list[Tensor]] = {}
        for node in self.graph.nodes:
            if self._needs_place(node):
                ends.setdefault(self.last[id(node)], []).append(node)
        for i, node in enumerate(self.graph.nodes):
            if self._needs_place(node) and id(node) not in self.layout.places:
                self._place(node)
            for done in ends.get(i, ()):
                if id(done) not in self.kept:
                    self._give(done)
        self.layout.peak = {kind: pool.peak for kind, pool in self.pools.items()}
        return self.layout

    def _needs_place(self, tensor: Tensor) -> bool:
        return tensor.view_src is None and not self.is_placed(tensor)

    def _pool(self, kind: BufferType) -> Pool:
        return self.pools.setdefault(kind, Pool(kind.alignment))

    def _take(self, tensor: Tensor) -> None:
        kind = self.home(tensor)
        pool = self._pool(kind)
        n_bytes = pool.size(tensor)
        self.layout.places[id(tensor)] = (kind, pool.take(n_bytes))
        self.layout.total += n_bytes

    def _give(self, tensor: Tensor) -> None:
        kind, at = self.layout.places[id(tensor)]
        self._pool(kind).give(at, self._pool(kind).size(tensor))

    def _place(self, node: Tensor) -> None:
        """In the place of a source if the op allows that and nobody else needs the source, else
        anywhere."""
        for i in node.op.inplace if node.op is not None else ():
            if i < len(node.src) and self._may_replace(node, node.src[i]):
                parent = owner(node.src[i])
                self.layout.places[id(node)] = self.layout.places[id(parent)]
                self.kept.add(id(parent))  # its bytes are the node's now, and go when that goes
                self.layout.inplace += 1
                self.layout.total += self._pool(self.home(node)).size(node)
                return
        self._take(node)

    def _may_replace(self, node: Tensor, source: Tensor) -> bool:
        parent = owner(source)
        place = self.layout.places.get(id(parent))
        return (
            place is not None
            and place[0] == self.home(node)
            and id(parent) not in self.kept
            and self.reads[id(parent)] == 1
            and node.same_layout(source)
            and source.view_offset == 0
            and parent.n_bytes == node.n_bytes
        )


class Allocator:
    """Buffers that are reserved once for the largest graph, and the places of the graphs that run
    in them."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self._backends = {backend.buffer_type: backend for backend in reversed(backends)}
        self._default = backends[0].buffer_type
        self._buffers: dict[BufferType, Buffer] = {}
        self._made: WeakSet[Buffer] = WeakSet()
        self.layout = Layout()
        self.n_grown = 0  # how often a buffer had to be made larger

    @property
    def n_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.n_bytes for buffer in self._buffers.values())

    def is_external(self, tensor: Tensor) -> bool:
        """Whether somebody else gave the tensor (or what it shows) memory: weights, caches."""
        own = owner(tensor)
        return own.data is not None and own.buffer not in self._made

    def reserve(self, graph: Order, home: Home | None = None) -> Layout:
        """Make the buffers large enough for this graph, and give it no memory."""
        self.layout = lay_out(graph, home or self._at_default, self.is_external)
        for kind, n_bytes in self.layout.peak.items():
            if kind not in self._buffers or self._buffers[kind].n_bytes < n_bytes:
                self._buffers[kind] = self._backends[kind].allocate(n_bytes, kind)
                self._made.add(self._buffers[kind])
                self.n_grown += 1
        return self.layout

    def allocate(self, graph: Order, home: Home | None = None) -> Layout:
        """Give every tensor of the graph its address; buffers that are too small are made anew."""
        layout = self.reserve(graph, home)
        for tensor in _each(graph):
            if tensor.view_src is None and id(tensor) in layout.places:
                kind, at = layout.places[id(tensor)]
                self._buffers[kind].place(tensor, at)
        for tensor in _each(graph):
            if tensor.view_src is not None and tensor.view_src.data is not None:
                tensor.buffer = tensor.view_src.buffer
                tensor.data = tensor.view_src.data + tensor.view_offset
        return layout

    def report(self) -> str:
        """The last graph's memory in one line a kind: what it takes, and what it would take without
        reuse."""
        sizes = ", ".join(f"{k.name} {n:,}" for k, n in sorted(self.layout.peak.items(), key=str))
        return f"compute buffers: {sizes} bytes; without reuse {self.layout.total:,}"

    def _at_default(self, tensor: Tensor) -> BufferType:
        return self._default


def _each(graph: Order) -> Iterable[Tensor]:
    yield from graph.leafs
    yield from graph.nodes
