"""One attention cache: the keys and values of some layers, a row a cell, all layers sharing the
bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.backend.backend import Backend, Buffer, view
from llamapy.core.errors import QuantError, UsageError
from llamapy.graph import Builder, Tensor
from llamapy.nn.attention import spread
from llamapy.nn.cache import Cache, Layer
from llamapy.nn.step import Step
from llamapy.quants import codec
from llamapy.quants.codec import Codec
from llamapy.runtime.memory.cells import Bools, Cells, Ids, Ints
from llamapy.runtime.memory.masks import mask
from llamapy.runtime.memory.memory import Array, Memory

if TYPE_CHECKING:
    from llamapy.runtime.batch import Tokens

STEP = 256  # the visible length grows in such steps, so that graphs can be used again
FEW = 1024  # cells; up to here small pages are as fast, and large ones would be mostly empty
SQUARE = 64  # the size of the matrix that turns values, and the least that turns keys

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

Placing = Callable[[int], Backend]


def cache_type(name: str) -> str:
    """The cache type that a person calls `name`, in lower case. UsageError if there is none."""
    if name.lower() not in CACHE_TYPES:
        raise UsageError(f"no cache type {name!r}", hint=f"there are {', '.join(CACHE_TYPES)}")
    return name.lower()


def padded(n: int) -> int:
    return -(-n // STEP) * STEP


class KV(Memory):
    """Cells and their tensors. Itself a whole memory for models whose layers all see alike.

    layers   the layers that it serves; all with the same window, direction and ALiBi
    n_cells  cells that may be used
    kinds    types of K and V
    place    the backend that computes a layer: its keys and values lie there
    name     prefix of the input names
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        n_cells: int,
        n_seq_max: int,
        kinds: tuple[str, str],
        place: Placing,
        name: str = "kv",
    ) -> None:
        self.layers, self.n_seq_max, self.name = list(layers), n_seq_max, name
        self.window = layers[0].window
        self.kinds = codec.get(kinds[0]), codec.get(kinds[1])
        self.cells = Cells(padded(n_cells), n_seq_max, n_cells)
        self._check()
        self.k: dict[int, Tensor] = {}
        self.v: dict[int, Tensor] = {}
        self.backends = {layer.index: place(layer.index) for layer in layers}
        self.k_turn, self.v_turn = self._turns()
        self.moves = 0
        self._sparse: list[tuple[Backend, list[Tensor]]] = []  # what lies in sparse memory
        self.n_bytes = self._allocate()

    def _check(self) -> None:
        """QuantError if a head does not divide into the blocks of the types."""
        for layer in self.layers:
            for kind, size in zip(self.kinds, (layer.n_k, layer.n_v)):
                if size % kind.n_values:
                    raise QuantError(
                        f"heads of {size} values do not divide into {kind.name} blocks of "
                        f"{kind.n_values}",
                        hint="choose f16 for the cache",
                    )

    def _turns(self) -> tuple[int, int]:
        """Sizes of the Hadamard matrices that spread outliers over a piece of a head before it is
        quantized: for keys the largest power of two that divides all heads, for values 64 (as
        llama.cpp chooses them); 0 where there is none."""
        k_kind, v_kind = self.kinds
        n_k = np.gcd.reduce([layer.n_k for layer in self.layers])
        n_v = np.gcd.reduce([layer.n_v for layer in self.layers])
        size = int(n_k & -n_k)
        k = size if k_kind.n_values > 1 and size >= SQUARE else 0
        v = SQUARE if v_kind.n_values > 1 and n_v % SQUARE == 0 else 0
        return k, v

    def _allocate(self) -> int:
        """Tensors for every layer, and one buffer a backend to hold them; its bytes."""
        by_backend: dict[int, tuple[Backend, list[Tensor]]] = {}
        for layer in self.layers:
            backend = self.backends[layer.index]
            mine = by_backend.setdefault(id(backend), (backend, []))[1]
            self.k[layer.index] = self._tensor("k", layer, layer.n_k, self.kinds[0])
            mine.append(self.k[layer.index])
            if not layer.v_in_k:
                self.v[layer.index] = self._tensor("v", layer, layer.n_v, self.kinds[1])
                mine.append(self.v[layer.index])
        return sum(self._place_rows(*each) for each in by_backend.values())

    def _place_rows(self, backend: Backend, tensors: list[Tensor]) -> int:
        """Give the tensors memory, a sparse one if there is and if it can pay; its bytes."""
        offsets, total = lay_out(tensors, backend)
        buffer = backend.allocate_sparse(total) if self.cells.n > FEW else None
        if buffer is not None:
            self._sparse.append((backend, tensors))
        place(tensors, offsets, buffer or backend.allocate(total))
        return total

    def _leave_sparse(self) -> None:
        """Move to memory that is fast when it is full. Until now, no row from FEW on has been
        written, so that the first ones are all there is to copy."""
        for backend, tensors in self._sparse:
            offsets, total = lay_out(tensors, backend)
            try:
                buffer = backend.allocate(total)
            except MemoryError:
                continue  # it works where it is, too
            for tensor, at in zip(tensors, offsets):
                rows = view(tensor)[: FEW * tensor.nb[1]]
                buffer.owner[at : at + len(rows)] = rows
            self.moves += 1
            place(tensors, offsets, buffer)
        self._sparse = []

    def _tensor(self, what: str, layer: Layer, size: int, kind: type[Codec]) -> Tensor:
        ne = [size * layer.n_head_kv, self.cells.n]
        return Tensor(kind, ne, name=f"{self.name}.{what}.{layer.index}")

    def caches(self) -> Iterator[KV]:
        yield self

    def plan(self, parts: Sequence[Tokens]) -> list[Any] | None:
        if len(parts) == 1:
            ids = self.cells.find(len(parts[0]), self.window)
            return None if ids is None else [(ids,)]
        saved, slots = self.cells.save(), []
        try:
            for part in parts:
                ids = self.cells.find(len(part), self.window)
                if ids is None:
                    return None
                self.cells.put(ids, part.pos, part.seqs)
                slots.append((ids,))
            return slots
        finally:
            self.cells.restore(saved)

    def put(self, part: Tokens, slot: tuple[Ids, ...]) -> None:
        self.take(slot[0], part.pos, part.seqs)

    def take(self, ids: Ids, pos: Ints, seqs: Bools) -> None:
        """Note what will be written to the cells, and have memory for it that is fast enough."""
        self.cells.put(ids, pos, seqs)
        if self._sparse and self.cells.end > FEW:
            self._leave_sparse()

    def sizes(self) -> tuple[int, ...]:
        return (min(self.cells.n, max(STEP, padded(self.cells.end))),)

    def worst(self) -> tuple[int, ...]:
        return (self.cells.n,)

    def view(self, sizes: tuple[int, ...]) -> Cache:
        return View(self, sizes[0])

    def values(
        self, part: Tokens, slot: tuple[Ids, ...], sizes: tuple[int, ...]
    ) -> dict[str, Array]:
        n_kv = sizes[0]
        seen = mask(self.layers[0], part, self.cells.pos[:n_kv], self.cells.seqs[:n_kv])
        return {f"{self.name}.ids": slot[0], f"{self.name}.mask": seen}

    def turn_keys(self, g: Builder, n: int) -> None:
        """Record the turning of n cells' keys (input `ids`) by the change of their positions (input
        `deltas`)."""
        ids = g.input(f"{self.name}.turn_ids", "i32", [n])
        deltas = g.input(f"{self.name}.turn_deltas", "i32", [n])
        for layer in self.layers:
            if layer.rope is None:
                continue
            rows = g.get_rows(self.k[layer.index], ids)  # float32, whatever the type
            heads = g.reshape(rows, [layer.n_k, layer.n_head_kv, n])
            heads = spread(g, heads, self.k_turn)
            size, at = layer.n_k - layer.rope_offset, layer.rope_offset * heads.nb[0]
            back = g.view(heads, (size, layer.n_head_kv, n), heads.nb, at) if at else heads
            turned = layer.rope.by_delta().turn(g, back, deltas)
            if at:
                front = g.view(heads, (layer.rope_offset, layer.n_head_kv, n), heads.nb, 0)
                turned = g.concat(front, turned, 0)
            turned = g.reshape(spread(g, turned, self.k_turn), rows.ne)
            g.expand(g.set_rows(self.k[layer.index], turned, ids))


class View:
    """The first n_kv cells of a KV, for building a graph."""

    def __init__(self, kv: KV, n_kv: int) -> None:
        self.kv, self.n_kv = kv, n_kv

    def store(
        self, g: Step, layer: Layer, k: Tensor, v: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        ids = g.input(f"{self.kv.name}.ids", "i64", [g.n_tokens])
        keys = g.expand(g.set_rows(self.kv.k[layer.index], rows_of(g, k), ids))
        if v is None:
            return self._heads(g, keys, layer.n_k, layer.n_head_kv), None
        values = g.expand(g.set_rows(self.kv.v[layer.index], rows_of(g, v), ids))
        return (
            self._heads(g, keys, layer.n_k, layer.n_head_kv),
            self._heads(g, values, layer.n_v, layer.n_head_kv),
        )

    def _heads(self, g: Step, stored: Tensor, size: int, n_head: int) -> Tensor:
        nb = (stored.nb[0], stored.kind.row_bytes(size), stored.nb[1])
        heads: Tensor = g.view(stored, (size, n_head, self.n_kv), nb, 0)
        return heads

    def mask(self, g: Step, layer: Layer) -> Tensor:
        return g.input(f"{self.kv.name}.mask", "f16", [self.n_kv, g.n_tokens])

    def turns(self, layer: Layer) -> tuple[int, int]:
        return self.kv.k_turn, self.kv.v_turn


def rows_of(g: Builder, x: Tensor) -> Tensor:
    """x [size, heads, n_tokens] as rows [size * heads, n_tokens], without a copy where the heads
    lie side by side."""
    ne = (x.ne[0] * x.ne[1], x.ne[2])
    if x.contiguous:
        rows: Tensor = g.reshape(x, ne)
    elif x.nb[1] == x.ne[0] * x.nb[0]:
        rows = g.view(x, ne, (x.nb[0], x.nb[2]), 0)
    else:
        rows = g.reshape(g.cont(x), ne)
    return rows


def lay_out(tensors: Sequence[Tensor], backend: Backend) -> tuple[list[int], int]:
    """Where each tensor begins in a buffer of the backend that holds them all, and its bytes."""
    step = backend.buffer_type.alignment
    offsets, total = [], 0
    for tensor in tensors:
        offsets.append(total)
        total += -(-tensor.n_bytes // step) * step
    return offsets, total


def place(tensors: Sequence[Tensor], offsets: Sequence[int], buffer: Buffer) -> None:
    """Give each tensor its place in the buffer."""
    for tensor, offset in zip(tensors, offsets):
        buffer.place(tensor, offset)
