"""What a case is: an op, its fields, how its sources look; and how to run one on a backend.

The truth is the op's numpy meaning, applied to arrays that numpy itself sliced and turned.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from llamapy.backend.backend import Backend, view
from llamapy.backend.reference.values import blocks, decode, encode
from llamapy.graph import Builder, Tensor
from llamapy.graph.tensor import four
from llamapy.quants import codec
from tests.ops import fill

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Src:
    """One source: `ne` values of type `kind`, drawn by `fill` (a function of tests/ops/fill.py).

    base   sizes of the tensor in memory of which the source is the front corner (so it has strides)
    axes   how it is permuted after that, as the op `permute` takes it; `ne` is the shape before
    """

    kind: str
    ne: Sequence[int]
    fill: str = "normal"
    low: float = 0.0
    high: float = 1.0
    base: Sequence[int] | None = None
    axes: tuple[int, int, int, int] | None = None
    weight: bool = False

    def __str__(self) -> str:
        text = self.kind + "x".join(map(str, ["", *self.ne]))
        text += "of" + "x".join(map(str, self.base)) if self.base else ""
        text += f":{self.fill}" if self.fill != "normal" else ""
        return text + ("p" + "".join(map(str, self.axes)) if self.axes else "")

    def draw(self, rng: np.random.Generator) -> Array:
        """Blocks of the tensor in memory, shape [ne3, ne2, ne1, blocks a row]."""
        kind = codec.get(self.kind)
        ne = four(self.base or self.ne)
        shape = (*ne[:0:-1], ne[0] // kind.n_values)
        return fill.draw(rng, kind, shape, self.fill, self.low, self.high)

    def array(self, drawn: Array) -> Array:
        """The numbers of the source, cut and turned by numpy."""
        numbers = decode(codec.get(self.kind), drawn)
        numbers = numbers[tuple(slice(n) for n in four(self.ne)[::-1])]
        if self.axes is not None:
            numbers = np.transpose(numbers, [3 - self.axes.index(3 - i) for i in range(4)])
        return numbers

    def tensor(self, g: Builder, backend: Backend, drawn: Array | None) -> Tensor:
        """The source as a tensor of the backend's memory (a leaf, or views of one)."""
        assert drawn is not None
        leaf = Tensor(self.kind, self.base or self.ne)
        buffer = backend.allocate(max(leaf.n_bytes, 1))
        buffer.weights = self.weight
        buffer.place(leaf, 0)
        backend.set_tensor(leaf, drawn)
        out: Tensor = leaf if self.base is None else g.view(leaf, self.ne, leaf.nb)
        return out if self.axes is None else g.permute(out, self.axes)


@dataclass(frozen=True, eq=False)
class Case:
    """`nmse`: how far from the meaning a result may be (normalized mean square error); 0 is
    equal."""

    op: str
    src: tuple[Src | None, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    nmse: float = 1e-7

    def __str__(self) -> str:
        fields = ",".join(f"{k}={v}" for k, v in self.fields.items())
        return "-".join([self.op, *("none" if s is None else str(s) for s in self.src), fields])

    @lru_cache(maxsize=1)  # noqa: B019 (the table lives as long as the tests)
    def arrays(self) -> list[Array | None]:
        """What is in memory for each source, from a seed that only depends on the case."""
        rng = np.random.default_rng(zlib.crc32(str(self).encode()))
        return [None if s is None else s.draw(rng) for s in self.src]


def build(
    case: Case, backend: Backend, drawn: Sequence[Array | None], over: int | None = None
) -> Tensor:
    """The node with its sources and its result in the backend's memory; `over`: the result takes
    the place of this source."""
    g = Builder()
    src = [s and s.tensor(g, backend, d) for s, d in zip(case.src, drawn)]
    node: Tensor = getattr(g, case.op)(*src, **case.fields)
    g.expand(node)
    for tensor in g.graph.nodes:
        if tensor.view_src is not None:
            tensor.buffer, tensor.data = tensor.view_src.buffer, tensor.view_src.data
            tensor.data += tensor.view_offset
        elif over is not None:
            assert node.same_layout(node.src[over])
            node.buffer, node.data = node.src[over].buffer, node.src[over].data
        else:
            backend.allocate(tensor.n_bytes).place(tensor, 0)
            view(tensor)[...] = 0xFF  # NaN, where a kernel writes nothing
    return node


def run_case(case: Case, backend: Backend, over: int | None = None) -> tuple[Array, Array]:
    """(got, want): the backend's result and the meaning's, as numbers of shape ne[::-1]."""
    drawn = case.arrays()
    node = build(case, backend, drawn, over)
    backend.compile([node]).run()
    backend.synchronize()
    want = meaning(case, node, drawn)
    if node.kind.name in ("f16", "bf16"):
        want = decode(node.kind, encode(node.kind, want))
    return decode(node.kind, blocks(node)), want


def meaning(case: Case, node: Tensor, drawn: Sequence[Array | None]) -> Array:
    """What the node's op makes of the drawn sources."""
    with np.errstate(all="ignore"):
        assert node.op is not None
        return node.op.meaning(*given(case, drawn))


def given(case: Case, drawn: Sequence[Array | None]) -> list[Array]:
    """The sources that are there, as numbers."""
    return [s.array(d) for s, d in zip(case.src, drawn) if s is not None and d is not None]


def size(case: Case, want: Array) -> float:
    """The mean square that errors are measured by: that of the numbers wanted. A product can be
    small by cancellation; there it is that of a sum of such terms with random signs."""
    if case.op in ("mul_mat", "mul_mat_id"):
        w, x = given(case, case.arrays())[:2]
        return float(np.dot(*(np.square(a).mean(axis=(0, 1, 2), dtype="f8") for a in (w, x))))
    finite = want[np.isfinite(want)].astype(np.float64)
    return float(np.square(finite).mean()) if finite.size else 0.0


def distance(case: Case, got: Array, want: Array) -> tuple[float, float]:
    """(normalized mean square error, largest error of one number in units of the size). The second
    shows a single wrong number. Infinite where shapes differ, or infinities or NaNs lie elsewhere.
    """
    finite = np.isfinite(want)
    if got.shape != want.shape or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return float("inf"), float("inf")
    if not np.isfinite(got[finite]).all():
        return float("inf"), float("inf")
    if not finite.any():
        return 0.0, 0.0
    error = np.square(got[finite].astype(np.float64) - want[finite])
    unit = size(case, want) or 1.0
    return float(error.mean() / unit), float(np.sqrt(error.max() / unit))


def check(case: Case, got: Array, want: Array, nmse: float | None = None) -> None:
    """AssertionError if the result is farther from the meaning than the case allows."""
    nmse = case.nmse if nmse is None else nmse
    nmse *= max(1.0, 16 / max(want.size, 1))  # the mean of few squares is uncertain
    far, worst = distance(case, got, want)
    assert far <= nmse, f"{case}: NMSE {far:.3g} > {nmse:g}"
    assert worst <= 12 * nmse**0.5, f"{case}: one number is off by {worst:.3g}"
