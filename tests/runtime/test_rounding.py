"""Products with rounded activations are ggml's own products (libggml-python through ctypes)."""

from __future__ import annotations

import numpy as np
import pytest

from llamapy.backend.backend import Backend
from llamapy.backend.cpu.device import CPU
from llamapy.backend.reference import Reference
from llamapy.core.errors import UsageError
from llamapy.nn.cache import Notes
from llamapy.nn.step import Step
from llamapy.quants import codec
from llamapy.runtime import rounding
from tests.ops import ggml
from tests.ops.case import Case, Src, blocks, decode, distance

# One of each way to round: F16 and BF16, blocks of 32 with and without sums, blocks of 256.
KINDS = ("f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "q2_K", "q4_K", "q6_K")
KINDS += ("iq3_xxs", "iq4_xs", "tq2_0")
NMSE = 1e-11  # sums of float32 in another order


@pytest.fixture(scope="module")
def peer() -> ggml.Ggml:
    return ggml.connect()


def product(case: Case, backend: Backend, *, rounded: bool) -> np.ndarray:
    """A product as the graph has it, or as `Rounded` makes it."""
    g = Step(n_tokens=1, n_outputs=1, n_ctx=1, cache=Notes())
    src = [s and s.tensor(g, backend, d) for s, d in zip(case.src, case.arrays())]
    node = g.expand(getattr(g, case.op)(*src))
    if rounded:
        rounding.Rounded().choose(g)
    for tensor in g.graph.nodes:
        if tensor.view_src is not None:
            tensor.buffer, tensor.data = tensor.view_src.buffer, tensor.view_src.data
            tensor.data += tensor.view_offset
        else:
            backend.allocate(tensor.n_bytes).place(tensor, 0)
    backend.compile(g.graph.nodes).run()
    return decode(node.kind, blocks(node))


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_those_of_ggml(kind: str, peer: ggml.Ggml) -> None:
    case = Case("mul_mat", (Src(kind, (512, 7), weight=True), Src("f32", (512, 20))))
    theirs = peer.run(case, case.arrays(), "f32", (7, 20))
    off = {
        rounded: distance(case, product(case, Reference(), rounded=rounded), theirs)[0]
        for rounded in (False, True)
    }
    assert off[True] < NMSE < 100 * NMSE < off[False], (kind, off)


@pytest.mark.parametrize("kind", ["q4_1", "q6_K"])
def test_kernels_do_the_same(kind: str, peer: ggml.Ggml) -> None:
    """With more dimensions, and for experts."""
    wide = Case("mul_mat", (Src(kind, (256, 5, 2), weight=True), Src("f32", (256, 20, 4))))
    ids = Src("i32", (2, 20), "ids", high=3)
    chosen = (Src(kind, (256, 5, 3), weight=True), Src("f32", (256, 1, 20)), ids)
    for case, ne in ((wide, (5, 20, 4)), (Case("mul_mat_id", chosen), (5, 2, 20))):
        theirs = peer.run(case, case.arrays(), "f32", ne)
        assert distance(case, product(case, CPU(1), rounded=True), theirs)[0] < NMSE, case


@pytest.mark.parametrize("kind", [k for k in codec.registry() if k not in ("q8_1", "q8_K")])
def test_the_other_side_has_ggmls_type(kind: str) -> None:
    """The table of ggml-cpu.c, by name."""
    own = {"f16": "f16", "bf16": "bf16", "f32": "f32", "q4_1": "q8_1", "q5_1": "q8_1"}
    if codec.get(kind).block.kind == "i" or kind == "f64":
        return
    by_256 = kind.endswith("_K") or kind.startswith(("iq1", "iq2", "iq3", "tq")) or kind == "iq4_xs"
    assert rounding.dot_type(codec.get(kind)) == own.get(kind, "q8_K" if by_256 else "q8_0")


def test_an_f32_product_stays_as_it_is() -> None:
    g = Step(n_tokens=1, n_outputs=1, n_ctx=1, cache=Notes())
    case = Case("mul_mat", (Src("f32", (32, 3)), Src("f32", (32, 2))))
    node = g.expand(
        g.mul_mat(*(s.tensor(g, Reference(), d) for s, d in zip(case.src, case.arrays())))
    )
    before = list(g.graph.nodes)
    rounding.Rounded().choose(g)
    assert g.graph.nodes == before == [node]


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="q9"):
        rounding.wrapped("q9", None)
