"""What a context asks of its memory, whatever it remembers; and the memory of models that remember
nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.nn.cache import Cache, Layer, NoCache, mask_name
from llamapy.runtime.memory.masks import mask

if TYPE_CHECKING:
    from llamapy.runtime.batch import Tokens
    from llamapy.runtime.memory.kv import KV

Array = np.ndarray[Any, Any]


class Memory(ABC):
    """Positions of sequences, and the tensors that go with them. A slot says where a ubatch's
    tokens are put."""

    n_seq_max: int
    n_bytes: int

    @abstractmethod
    def caches(self) -> Iterator[KV]:
        """The attention caches inside."""

    @property
    def n_moves(self) -> int:
        """How often tensors have got other addresses: graphs compiled before that are of no use."""
        return sum(kv.moves for kv in self.caches())

    @abstractmethod
    def plan(self, parts: Sequence[Tokens]) -> list[Any] | None:
        """A slot for each ubatch, or None if not all of them find room. Nothing is changed."""

    @abstractmethod
    def put(self, part: Tokens, slot: Any) -> None:
        """Note that the ubatch lies in this slot."""

    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """How much is visible: what of it a graph depends on."""

    @abstractmethod
    def worst(self) -> tuple[int, ...]:
        """The largest sizes."""

    @abstractmethod
    def view(self, sizes: tuple[int, ...]) -> Cache:
        """What a graph of these sizes is built with."""

    @abstractmethod
    def values(self, part: Tokens, slot: Any, sizes: tuple[int, ...]) -> dict[str, Array]:
        """{input name: contents} for a graph built with `view(sizes)`."""

    def save(self) -> Any:
        """The bookkeeping, for `restore`."""
        return [kv.cells.save() for kv in self.caches()]

    def restore(self, saved: Any, slots: Sequence[Any] = ()) -> None:
        """Take back all changes since `save`; what was in cells that `slots` overwrote is
        forgotten."""
        for i, kv in enumerate(self.caches()):
            kv.cells.restore(saved[i])
            for slot in slots:
                kv.cells.forget(slot[i])

    def pos_min(self, seq: int) -> int:
        """The least position that all of the sequence's memory still has; -1 if there is none."""
        return max((kv.cells.pos_min(seq) for kv in self.caches()), default=-1)

    def pos_max(self, seq: int) -> int:
        """The last position of the sequence; -1 if there is none."""
        return max((kv.cells.pos_max(seq) for kv in self.caches()), default=-1)

    def clear(self) -> None:
        for kv in self.caches():
            kv.cells.clear()

    def remove(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        """Take positions p0 to p1 - 1 from the sequence (-1: from all; negative ends: to either
        end). False, and nothing changed, if the memory could not go on from there."""
        for kv in self.caches():
            kv.cells.remove(seq, p0, p1)
        return True

    def copy(self, source: int, target: int, p0: int = -1, p1: int = -1) -> None:
        """Let the target sequence share positions p0 to p1 - 1 of the source."""
        for kv in self.caches():
            kv.cells.copy(source, target, p0, p1)

    def keep(self, seq: int) -> None:
        """Remove all other sequences."""
        for kv in self.caches():
            kv.cells.keep(seq)

    def shift(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Move positions p0 to p1 - 1 by delta. Keys are turned at the next decode."""
        for kv in self.caches():
            kv.cells.move(seq, p0, p1, delta=delta)

    def divide(self, seq: int, p0: int, p1: int, divisor: int) -> None:
        """Divide positions p0 to p1 - 1, dropping fractions. Keys are turned at the next decode."""
        for kv in self.caches():
            kv.cells.move(seq, p0, p1, new=kv.cells.pos // divisor)


class NoMemory(Memory):
    """Encoders: tokens see the tokens of their own ubatch."""

    def __init__(self, layers: Sequence[Layer], n_seq_max: int) -> None:
        self.layers, self.n_seq_max, self.n_bytes = list(layers), n_seq_max, 0

    def caches(self) -> Iterator[KV]:
        return iter(())

    def plan(self, parts: Sequence[Tokens]) -> list[Any] | None:
        return [()] * len(parts)

    def put(self, part: Tokens, slot: Any) -> None:
        pass

    def sizes(self) -> tuple[int, ...]:
        return ()

    def worst(self) -> tuple[int, ...]:
        return ()

    def view(self, sizes: tuple[int, ...]) -> Cache:
        return NoCache()

    def values(self, part: Tokens, slot: Any, sizes: tuple[int, ...]) -> dict[str, Array]:
        return {mask_name(layer): mask(layer, part, part.pos, part.seqs) for layer in self.layers}
