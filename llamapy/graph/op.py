"""The base of ops: what shape comes out, and what the numbers mean in numpy. One file in `ops/` is one op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from llamapy.core import discover
from llamapy.graph.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Op:
    """One kind of computation with its parameters as dataclass fields.

    name       as in ggml ("rms_norm"); the file has the same name
    inplace    whether the result may take the place of a source of the same layout
    in_view    whether the result is a view of source 0 (views proper, and ops that write into their destination)
    computes   False for views proper: nothing to run

    `build(*src)` makes the tensor (default: new memory of the shape that `shape(*src)` gives).
    `meaning(*arrays)` is the truth for every backend: sources as numpy arrays of shape ne[::-1] (strided views as
    they are; float32 for float and quantized types; integers as they are) -> the result's array, shape ne[::-1].
    """

    name: ClassVar[str]
    inplace: ClassVar[bool] = False
    in_view: ClassVar[bool] = False
    computes: ClassVar[bool] = True

    def __init_subclass__(
        cls, *, name: str, inplace: bool = False, in_view: bool = False, computes: bool = True
    ) -> None:
        cls.name, cls.inplace, cls.in_view, cls.computes = name, inplace, in_view, computes

    def shape(self, *src: Tensor) -> tuple[tuple[int, ...], str]:
        """(ne, type name) of the result. Raises ShapeError if the sources do not fit."""
        raise NotImplementedError

    def meaning(self, *arrays: Array) -> Array:
        raise NotImplementedError

    def build(self, *src: Tensor) -> Tensor:
        ne, kind = self.shape(*src)
        return Tensor(kind, ne, op=self, src=src)


@cache
def registry() -> dict[str, type[Op]]:
    """Every op: {name: class}, by the files of `graph/ops`."""
    found: dict[str, type[Op]] = {}
    for module in discover.load_all("llamapy.graph.ops").values():
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Op) and value is not Op:
                found[value.name] = value
    return found


def maker(name: str) -> Callable[..., Tensor]:
    """The function that makes a tensor with op `name`: tensors first, then the op's fields."""
    op_class = registry().get(name)
    if op_class is None:
        raise AttributeError(f"there is no op {name!r}")

    def make(*args: Any, **fields: Any) -> Tensor:
        src = [a for a in args if isinstance(a, Tensor)]
        given = [a for a in args if a is not None and not isinstance(a, Tensor)]
        return op_class(*given, **fields).build(*src)

    return make
