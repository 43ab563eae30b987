"""A tensor: type, shape, strides, the op that makes it and where its bytes are. Views share bytes.

Shapes are ggml's: `ne` holds up to four sizes, innermost (contiguous) first; `nb` the strides in
bytes. The numpy array of a tensor therefore has the shape `ne[::-1]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from math import prod
from typing import TYPE_CHECKING, Any

from llamapy.core.errors import ShapeError
from llamapy.quants import codec
from llamapy.quants.codec import Codec

if TYPE_CHECKING:
    from llamapy.graph.op import Op

INPUT, OUTPUT, PARAM = 1, 2, 4  # flags: filled from outside / never overwritten or freed / a weight

_serial = count()


def strides(kind: type[Codec], ne: Sequence[int]) -> tuple[int, int, int, int]:
    """Strides in bytes of a contiguous tensor: nb[0] is the size of a block, nb[1] of a row."""
    nb1 = kind.row_bytes(ne[0])
    return (kind.n_bytes, nb1, nb1 * ne[1], nb1 * ne[1] * ne[2])


def four(ne: Sequence[int]) -> tuple[int, int, int, int]:
    """`ne` with missing sizes as 1. ShapeError if there are more than four."""
    if len(ne) > 4:
        raise ShapeError(f"a tensor has at most four dimensions, got {tuple(ne)}")
    padded = (*ne, *([1] * (4 - len(ne))))
    return (padded[0], padded[1], padded[2], padded[3])


class Tensor:
    """See the module. `buffer` and `data` (an address) are set by whoever gives it memory; None
    before."""

    __slots__ = (
        "buffer", "data", "flags", "kind", "name", "nb", "ne", "op", "serial", "src",
        "view_offset", "view_src",
    )  # fmt: skip

    def __init__(
        self,
        kind: str | type[Codec],
        ne: Sequence[int],
        *,
        name: str = "",
        op: Op | None = None,
        src: tuple[Tensor, ...] = (),
        nb: Sequence[int] | None = None,
        view_src: Tensor | None = None,
        view_offset: int = 0,
        flags: int = 0,
    ) -> None:
        self.kind = codec.get(kind)
        self.ne = four(ne)
        self.nb = strides(self.kind, self.ne) if nb is None else (nb[0], nb[1], nb[2], nb[3])
        self.name, self.op, self.src, self.flags = name, op, src, flags
        # A view of a view names the tensor that owns the bytes.
        if view_src is not None and view_src.view_src is not None:
            view_offset += view_src.view_offset
            view_src = view_src.view_src
        self.view_src: Tensor | None = view_src
        self.view_offset: int = view_offset
        self.buffer: Any = None
        self.data: int | None = None
        self.serial = next(_serial)

    @property
    def n_elements(self) -> int:
        return prod(self.ne)

    @property
    def n_rows(self) -> int:
        return self.ne[1] * self.ne[2] * self.ne[3]

    @property
    def n_bytes(self) -> int:
        """Bytes from the first to past the last element, strides counted."""
        if 0 in self.ne:
            return 0
        span = (
            self.kind.row_bytes(self.ne[0])
            if self.kind.n_values > 1
            else self.nb[0] * (self.ne[0] - 1)
        )
        span += sum((n - 1) * b for n, b in zip(self.ne[1:], self.nb[1:]))
        return span if self.kind.n_values > 1 else span + self.kind.n_bytes

    @property
    def contiguous(self) -> bool:
        """Whether the elements lie in order without gaps (sizes of 1 may have any stride)."""
        want = strides(self.kind, self.ne)
        return all(n == 1 or b == w for n, b, w in zip(self.ne, self.nb, want))

    @property
    def contiguous_rows(self) -> bool:
        """Whether each row's elements lie side by side."""
        return self.nb[0] == self.kind.n_bytes or self.ne[0] == 1

    @property
    def is_view(self) -> bool:
        return self.view_src is not None

    def same_layout(self, other: Tensor) -> bool:
        return self.kind is other.kind and self.ne == other.ne and self.nb == other.nb

    def named(self, name: str) -> Tensor:
        """Set the name; the tensor itself, for chaining."""
        self.name = name
        return self

    def __repr__(self) -> str:
        op = self.op.name if self.op else "leaf"
        return f"<{self.name or '#' + str(self.serial)} {op} {self.kind.name} {list(self.ne)}>"
