"""The base of ops: what shape comes out, and what the numbers mean in numpy. One file in `ops/` is
one op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import numpy as np

from llamapy.core import discover
from llamapy.core.errors import ShapeError
from llamapy.graph.tensor import Tensor

Array = np.ndarray[Any, Any]
T = TypeVar("T")
_OPS = "llamapy.graph.ops"


@dataclass(frozen=True)
class Op:
    """One kind of computation with its parameters as dataclass fields.

    name       as in ggml ("rms_norm"); the file has the same name
    inplace    numbers of the sources whose place the result may take if the layout is the same; ()
               if none. A kernel of such an op must allow that its result and that source are the
               same memory.
    in_view    whether the result is a view of a source (views proper, and ops that write into their
               destination)
    computes   False for views proper: nothing to run
    by_rows    numbers of the sources that are only indexed (`w[0, expert]`, `table[i3, i2, ids]`),
               never read whole: a backend may give an object that dequantizes what an index asks
               for
    optional   {name: position} of the sources that may be None. The op then has a field
               `has_<name>`; absent ones are left out of `Tensor.src`, and `spread` puts a None back
               in their place.

    `build(*src)` makes the tensor (default: new memory of the shape that `shape(*src)` gives).
    `meaning(*arrays)` is the truth for every backend: sources as numpy arrays of shape ne[::-1]
    (strided views as they are; float32 for float and quantized types; integers as they are) -> the
    result's array, shape ne[::-1].
    """

    name: ClassVar[str]
    inplace: ClassVar[tuple[int, ...]] = ()
    in_view: ClassVar[bool] = False
    computes: ClassVar[bool] = True
    by_rows: ClassVar[tuple[int, ...]] = ()
    optional: ClassVar[Mapping[str, int]] = MappingProxyType({})

    def __init_subclass__(
        cls,
        *,
        name: str,
        inplace: bool | tuple[int, ...] = False,
        in_view: bool = False,
        computes: bool = True,
        by_rows: tuple[int, ...] = (),
        optional: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        cls.name, cls.in_view, cls.computes, cls.by_rows = name, in_view, computes, by_rows
        cls.inplace = (0,) * inplace if isinstance(inplace, bool) else inplace
        cls.optional = optional

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        """(ne, type name) of the result; default: as source 0, in float32. ShapeError if the
        sources do not fit."""
        return src[0].ne, "f32"

    def meaning(self, *arrays: Array) -> Array:
        raise NotImplementedError

    def part(self, *arrays: Array) -> tuple[Array, Any]:
        """(values, index): what is computed, and where in the result it goes, as a numpy index.

        Default: the meaning, everywhere. Ops that write a part of their destination say which; they
        do not look at the destination's array but for its shape.
        """
        return self.meaning(*arrays), ...

    def build(self, *src: Tensor | None) -> Tensor:
        op, given = self.bind(src)
        ne, kind = op.shape(*given)
        return Tensor(kind, ne, op=op, src=given)

    def bind(self, src: Sequence[Tensor | None]) -> tuple[Op, tuple[Tensor, ...]]:
        """The op with its `has_` fields set for these sources, and the sources that are there."""
        if not self.optional and None not in src:
            return self, tuple(src)  # type: ignore[arg-type]
        here = [i for i, s in enumerate(src) if s is not None]
        op = replace(self, **{f"has_{name}": at in here for name, at in self.optional.items()})
        absent = set(range(len(src))) - set(here) - set(self.optional.values())
        self.require(not absent, f"source {min(absent, default=0)} is missing")
        return op, tuple(s for s in src if s is not None)

    def spread(self, items: Sequence[T]) -> tuple[T | None, ...]:
        """`items` (one a source that is there) with None in the places of absent optional
        sources."""
        absent = {at for name, at in self.optional.items() if not getattr(self, f"has_{name}")}
        left = iter(items)
        return tuple(None if i in absent else next(left) for i in range(len(items) + len(absent)))

    def require(self, fits: bool, why: str, *src: Tensor) -> None:
        """ShapeError with the op's name and the sources, unless `fits`."""
        if not fits:
            raise ShapeError(
                f"{self.name}: {why}" + (f": {', '.join(map(repr, src))}" if src else "")
            )


def registry() -> dict[str, type[Op]]:
    """Every op: {name: class}, by the files of `graph/ops`."""
    return {name: named(name) for name in discover.names(_OPS)}


@cache
def named(name: str) -> type[Op]:
    """The op of this name, which its file has, too: a model needs a dozen of them, so that the
    others are not loaded. AttributeError if there is none."""
    try:
        module = discover.load(_OPS, name)
    except KeyError:
        raise AttributeError(f"there is no op {name!r}") from None
    return next(
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Op) and value is not Op
    )


@cache
def maker(name: str) -> Callable[..., Tensor]:
    """The function that makes a tensor with op `name`: tensors first (None for an absent one), then
    the fields."""
    op_class = named(name)

    def make(*args: Any, **fields: Any) -> Tensor:
        n_src = 0
        while n_src < len(args) and (args[n_src] is None or isinstance(args[n_src], Tensor)):
            n_src += 1
        return op_class(*args[n_src:], **fields).build(*args[:n_src])

    return make
