"""Weights by name, each asked for with the shape that the architecture needs.

The same `build` meets three sources: the tensors of a loaded file, a trace that only notes names
and shapes, and whatever the converter puts behind a trace. Knows no file format and no backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from llamapy.core.errors import ModelError, ShapeError
from llamapy.graph import PARAM, Tensor

Shape = tuple[int, ...]


class Source(Protocol):
    """Where tensors come from."""

    def has(self, name: str) -> bool: ...

    def tensor(self, name: str, ne: Shape) -> Tensor: ...


class Weights:
    """`w("token_embd.weight", n_embd, n_vocab)`: the tensor, whose sizes (innermost first) must be
    these.

    `w.get(...)` is the same for optional ones (None), `w.block(i)` the view with prefix "blk.i." .
    """

    def __init__(self, source: Source, prefix: str = "", index: int = -1) -> None:
        self._source, self._prefix, self.index = source, prefix, index

    def __call__(self, name: str, *ne: int) -> Tensor:
        return self._source.tensor(self._prefix + name, ne)

    def has(self, name: str) -> bool:
        return self._source.has(self._prefix + name)

    def get(self, name: str, *ne: int) -> Tensor | None:
        return self(name, *ne) if self.has(name) else None

    def block(self, index: int) -> Weights:
        """The tensors of layer `index`."""
        return Weights(self._source, f"blk.{index}.", index)

    def blocks(self, n_layer: int) -> Iterator[tuple[int, Weights]]:
        """(i, block i) for every layer."""
        return ((i, self.block(i)) for i in range(n_layer))


class Traced:
    """Notes what is asked for: `shapes` is {name: ne} in the order of first use.

    optional  says of an optional tensor whether it is there; without it none is
    """

    def __init__(self, optional: Callable[[str], bool] = lambda name: False) -> None:
        self.optional = optional
        self.shapes: dict[str, Shape] = {}
        self._tensors: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        return self.optional(name)

    def tensor(self, name: str, ne: Shape) -> Tensor:
        if name not in self._tensors:
            self.shapes[name] = ne
            self._tensors[name] = Tensor("f32", ne, name=name, flags=PARAM)
        return self._tensors[name]


class Loaded:
    """Tensors that have data. ModelError if one is missing, ShapeError if its sizes are others."""

    def __init__(self, tensors: Mapping[str, Tensor], where: str) -> None:
        self.tensors, self.where = tensors, where

    def has(self, name: str) -> bool:
        return name in self.tensors

    def tensor(self, name: str, ne: Shape) -> Tensor:
        found = self.tensors.get(name)
        if found is None:
            raise ModelError(f"{self.where}: tensor {name!r} is missing")
        if not same_shape(found.ne, ne):
            raise wrong_shape(self.where, name, found.ne, ne)
        return found


def compare(needed: Mapping[str, Shape], found: Mapping[str, Shape], where: str) -> list[str]:
    """Check a file's tensors against a trace: the names that nobody asked for. ModelError lists
    what is missing, ShapeError names the first that differs."""
    missing = [name for name in needed if name not in found]
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        names = ", ".join(map(repr, missing[:5]))
        raise ModelError(f"{where}: {len(missing)} of {len(needed)} tensors missing: {names}{more}")
    for name, ne in needed.items():
        if not same_shape(found[name], ne):
            raise wrong_shape(where, name, found[name], ne)
    return [name for name in found if name not in needed]


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal up to trailing ones."""
    n = max(len(a), len(b))
    return (*a, *[1] * (n - len(a))) == (*b, *[1] * (n - len(b)))


def wrong_shape(where: str, name: str, got: Shape, need: Shape) -> ShapeError:
    n_dims = max(len(need), max((i + 1 for i, n in enumerate(got) if n != 1), default=1))
    shown = list((*got, *[1] * n_dims)[:n_dims])
    return ShapeError(
        f"{where}: tensor {name!r} has shape {shown}, needed is {list(need)}",
        hint="the file's metadata does not fit its tensors",
    )
