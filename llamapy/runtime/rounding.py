"""Activations rounded as llama.cpp's CPU kernels round them, for figures that equal its figures.

Before a product with F16, BF16 or quantized weights, llama.cpp converts the other side to a type
that the weights' type chooses (`vec_dot_type` in ggml-cpu.c): the same type for F16 and BF16, else
blocks of 8 bits. Ours keeps 16 bits or more, which is nearer to the exact product. Here every such
source goes through that type and back, and meets the weights in float32, so that only llama.cpp's
rounding remains. All of it is casts and views in the graph: no kernel knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llamapy.core.errors import UsageError
from llamapy.graph import Tensor
from llamapy.graph.ops.add import Add
from llamapy.graph.ops.view import View
from llamapy.nn.step import Step
from llamapy.quants import codec
from llamapy.runtime.batch import Tokens

if TYPE_CHECKING:
    from llamapy.runtime.context import Observer

CHOICES = ("exact", "q8")
PRODUCTS = ("mul_mat", "mul_mat_id")
WITH_SUMS = {"q4_1", "q5_1"}  # met by Q8_1, whose blocks carry their sum for the minimum
MOST = 2**25  # weights of a matrix that are spread to float32; larger ones (the output) stay


class Rounded:
    """An observer that rounds what products meet. inner: another observer, which sees what was
    there before rounding."""

    def __init__(self, inner: Observer | None = None) -> None:
        self.inner = inner
        self.whole = inner is not None and inner.whole

    def choose(self, g: Step) -> None:
        if self.inner is not None:
            self.inner.choose(g)
        nodes, made = list(g.graph.nodes), _Made(g)
        for node in nodes:
            if node.op is not None and node.op.name in PRODUCTS:
                made.replace(node)

    def see(self, part: Tokens, values: Callable[[str], Any]) -> None:
        if self.inner is not None:
            self.inner.see(part, values)


class _Made:
    """What has been put into one graph; products of the same source share its rounding."""

    def __init__(self, g: Step) -> None:
        self.g = g
        self._rounded: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}

    def replace(self, node: Tensor) -> None:
        """Let a product take the rounded source and, if they are not too many, plain weights."""
        assert node.op is not None
        weight, x, *rest = node.src
        kind = dot_type(weight.kind)
        if kind == x.kind.name:
            return
        if (id(x), kind) not in self._rounded:
            short = self._before(node, self.g.cast(x, kind=kind))
            plain = self._before(node, self.g.cast(short, kind="f32"))
            self._rounded[id(x), kind] = short, plain
        short, rounded = self._rounded[id(x), kind]
        spread = weight
        if weight.n_elements <= MOST:
            spread = self._before(node, self.g.cast(weight, kind="f32"))
        if kind != "q8_1":
            node.src = (spread, rounded, *rest)
            return
        product = self._before(node, node.op.build(spread, rounded, *rest))
        minimums, off = self._seconds(node, weight), self._off(node, short, rounded)
        more = self._before(node, node.op.build(minimums, off, *rest))
        node.op, node.src = Add(), (product, more)

    def _off(self, node: Tensor, short: Tensor, rounded: Tensor) -> Tensor:
        """How far the sums in Q8_1, which are rounded to half precision, are from those of its
        numbers: [blocks a row, ...]."""
        blocks = self._before(node, self.g.reshape(rounded, [32, rounded.n_elements // 32]))
        sums = self._before(node, self.g.sum_rows(blocks))
        own = self.g.reshape(sums, [rounded.ne[0] // 32, *rounded.ne[1:]])
        return self._before(node, self.g.sub(self._seconds(node, short), self._before(node, own)))

    def _seconds(self, node: Tensor, x: Tensor) -> Tensor:
        """The second half-precision number of each block, as float32 [blocks a row, ...]: the
        minimum in Q4_1 and Q5_1, the sum in Q8_1."""
        ne, nb = (x.ne[0] // 32, *x.ne[1:]), (x.kind.n_bytes, *x.nb[1:])
        seen = Tensor("f16", ne, op=View(ne, nb, 2), src=(x,), nb=nb, view_src=x, view_offset=2)
        return self._before(node, self.g.cast(self._before(node, seen), kind="f32"))

    def _before(self, node: Tensor, made: Tensor) -> Tensor:
        self.g.graph.insert(made, node)
        return made


def dot_type(weights: type[codec.Codec]) -> str:
    """The type that llama.cpp's CPU kernels round the other side of a product to."""
    return "q8_1" if weights.name in WITH_SUMS else weights.dot_with or weights.name


def wrapped(activations: str, observer: Observer | None) -> Observer | None:
    """The observer for a way to treat activations: "exact" or "q8". UsageError for another."""
    if activations not in CHOICES:
        raise UsageError(
            f"activations are {activations!r}", hint=f"there are {' and '.join(CHOICES)}"
        )
    return observer if activations == "exact" else Rounded(observer)
