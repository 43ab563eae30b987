"""Caches for models of which some layers see only the last positions: those have a small cache of
their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.graph import Tensor
from llamapy.nn.cache import Cache, Layer
from llamapy.nn.step import Step
from llamapy.runtime.memory.cells import Ids
from llamapy.runtime.memory.kv import KV, Placing, padded
from llamapy.runtime.memory.memory import Array, Memory

if TYPE_CHECKING:
    from llamapy.runtime.batch import Tokens


class Windows(Memory):
    """One KV for each width of sight: {window: KV}, 0 being everything."""

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        n_cells: int,
        n_ubatch: int,
        n_seq_max: int,
        kinds: tuple[str, str],
        place: Placing,
    ) -> None:
        self.n_seq_max = n_seq_max
        self.by_window: dict[int, KV] = {}
        for window in sorted({layer.window for layer in layers}):
            near = min(padded(n_cells), padded(window * n_seq_max + n_ubatch))
            self.by_window[window] = KV(
                [layer for layer in layers if layer.window == window],
                n_cells=near if window else n_cells,
                n_seq_max=n_seq_max,
                kinds=kinds,
                place=place,
                name=f"kv{window or ''}",
            )
        self.n_bytes = sum(kv.n_bytes for kv in self.caches())

    def caches(self) -> Iterator[KV]:
        return iter(self.by_window.values())

    def remove(self, seq: int, p0: int = -1, p1: int = -1) -> bool:
        if p0 > 0 and p1 < 0 and not all(self._sees(s, p0) for s in self._which(seq)):
            return False
        return super().remove(seq, p0, p1)

    def _which(self, seq: int) -> range:
        return range(self.n_seq_max) if seq < 0 else range(seq, seq + 1)

    def _sees(self, seq: int, pos: int) -> bool:
        """Whether a token at `pos` would find all that it may look at: some may have been
        overwritten."""
        held = {w: kv.cells.pos[kv.cells.of(seq, -1, pos)] for w, kv in self.by_window.items()}
        everything = max(held.values(), key=len)
        return all(
            np.isin(everything[everything > pos - window], mine).all()
            for window, mine in held.items()
            if window
        )

    def plan(self, parts: Sequence[Tokens]) -> list[Any] | None:
        plans = []
        for kv in self.caches():
            plan = kv.plan(parts)
            if plan is None:
                return None
            plans.append(plan)
        return [sum(slots, ()) for slots in zip(*plans)]

    def put(self, part: Tokens, slot: tuple[Ids, ...]) -> None:
        for kv, ids in zip(self.caches(), slot):
            kv.put(part, (ids,))

    def sizes(self) -> tuple[int, ...]:
        return sum((kv.sizes() for kv in self.caches()), ())

    def worst(self) -> tuple[int, ...]:
        return sum((kv.worst() for kv in self.caches()), ())

    def view(self, sizes: tuple[int, ...]) -> Cache:
        return Views(
            {window: kv.view((n,)) for (window, kv), n in zip(self.by_window.items(), sizes)}
        )

    def values(
        self, part: Tokens, slot: tuple[Ids, ...], sizes: tuple[int, ...]
    ) -> dict[str, Array]:
        found: dict[str, Array] = {}
        for kv, ids, n in zip(self.caches(), slot, sizes):
            found |= kv.values(part, (ids,), (n,))
        return found


class Views:
    """Sends each layer to the view of its window."""

    def __init__(self, by_window: dict[int, Cache]) -> None:
        self.by_window = by_window

    def store(
        self, g: Step, layer: Layer, k: Tensor, v: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return self.by_window[layer.window].store(g, layer, k, v)

    def mask(self, g: Step, layer: Layer) -> Tensor:
        return self.by_window[layer.window].mask(g, layer)

    def turns(self, layer: Layer) -> tuple[int, int]:
        return self.by_window[layer.window].turns(layer)
