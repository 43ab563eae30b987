"""Recording: order, inputs, optional sources, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.core.errors import ShapeError
from llamapy.graph import INPUT, OUTPUT, Builder, Graph, Tensor
from llamapy.graph.op import maker, registry


@settings(max_examples=30)
@given(st.integers(0, 10_000))
def test_sources_come_before_their_users_and_each_once(seed):
    rng = np.random.default_rng(seed)
    g, made = Builder(), [Tensor("f32", (4,)) for _ in range(3)]
    for _ in range(40):
        a, b = rng.choice(len(made), 2)
        made.append(g.add(made[a], made[b]) if rng.random() < 0.7 else g.reshape(made[a], (2, 2)))
        made[-1] = g.reshape(made[-1], (4,))
    for i in rng.choice(len(made), 5):
        g.expand(made[i])
    everything = [*g.graph.leafs, *g.graph.nodes]
    assert len({id(t) for t in everything}) == len(everything)
    position = {id(t): i for i, t in enumerate(g.graph.nodes)}
    for node in g.graph.nodes:
        assert node.op is not None
        assert all(position.get(id(s), -1) < position[id(node)] for s in node.src)
    assert all(leaf.op is None for leaf in g.graph.leafs)


def test_sources_are_visited_left_to_right():
    g = Builder()
    x = Tensor("f32", (4,))
    left, right = g.neg(x), g.exp(x)
    out = g.expand(g.sub(left, right))
    assert list(g.graph) == [left, right, out]


def test_what_is_expanded_first_comes_first():
    g, x = Builder(), Tensor("f32", (4,))
    a, b = g.neg(x), g.exp(x)
    g.expand(b)
    g.expand(g.add(a, b))
    assert g.graph.nodes[0] is b


def test_a_deep_graph_needs_no_deep_stack():
    g, x = Builder(), Tensor("f32", (4,))
    for _ in range(5_000):
        x = g.neg(x)
    g.expand(x)
    assert len(g.graph.nodes) == 5_000


def test_an_output_is_marked_and_recorded():
    graph, out = Graph(), Builder().neg(Tensor("f32", (4,)))
    assert graph.output(out) is out and out.flags & OUTPUT and graph.nodes == [out]


def test_users_see_reads_through_views():
    g, x = Builder(), Tensor("f32", (4,))
    y = g.neg(x)
    view = g.reshape(y, (2, 2))
    end = g.expand(g.exp(view))
    users = g.graph.users()
    assert users[id(view)] == [end] and view in users[id(y)]


def test_inputs_are_made_once_and_taps_name():
    g = Builder()
    x = g.input("tokens", "i32", (3,))
    assert g.input("tokens", "i32", (3,)) is x and x.flags & INPUT and g.inputs == {"tokens": x}
    y = g.tap("blk.0.out", g.neg(Tensor("f32", (2,))))
    assert y.name == "blk.0.out" and g.taps == {"blk.0.out": y}


def test_an_op_file_holds_the_op_of_its_name():
    for name, op in registry().items():
        assert op.__module__ == f"llamapy.graph.ops.{name}"


def test_an_unknown_op_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no op 'frobnicate'"):
        maker("frobnicate")
    with pytest.raises(AttributeError):
        Builder().frobnicate  # noqa: B018


def test_absent_sources_are_left_out_and_noted():
    g = Builder()
    x, mask, sinks = (Tensor("f32", ne) for ne in ((5, 2, 3), (5, 2), (3,)))
    for given_mask in (None, mask):
        for given_sinks in (None, sinks):
            node = g.soft_max(x, given_mask, given_sinks, scale=2.0)
            assert node.op.has_mask == (given_mask is not None)
            assert node.op.has_sinks == (given_sinks is not None)
            assert None not in node.src
            assert node.op.spread(node.src) == (x, given_mask, given_sinks)
            assert node.op.spread("abc"[: len(node.src)])[0] == "a"
    assert g.soft_max(x).op.spread((x,)) == (x, None, None)
    with pytest.raises(ShapeError, match="source 1 is missing"):
        g.mul_mat(x, None)


def t(kind, *ne):
    return Tensor(kind, ne)


BAD = {
    "add": lambda g: g.add(t("f32", 6), t("f32", 4)),
    "add the small to the large": lambda g: g.add(t("f32", 3), t("f32", 6)),
    "mul_mat rows": lambda g: g.mul_mat(t("f32", 6, 2), t("f32", 5, 2)),
    "mul_mat heads": lambda g: g.mul_mat(t("f32", 6, 2, 3), t("f32", 6, 2, 4)),
    "mul_mat_id ids": lambda g: g.mul_mat_id(t("f32", 6, 2, 3), t("f32", 6, 1, 4), t("f32", 2, 4)),
    "mul_mat_id tokens": lambda g: g.mul_mat_id(
        t("f32", 6, 2, 3), t("f32", 6, 1, 4), t("i32", 2, 5)
    ),
    "add_id": lambda g: g.add_id(t("f32", 6, 2, 4), t("f32", 5, 3), t("i32", 2, 4)),
    "get_rows": lambda g: g.get_rows(t("f32", 6, 9), t("i64", 2)),
    "get_rows batches": lambda g: g.get_rows(t("f32", 6, 9, 2), t("i32", 2, 3)),
    "set_rows": lambda g: g.set_rows(t("f32", 6, 9), t("f32", 5, 2), t("i64", 2)),
    "set_rows ids": lambda g: g.set_rows(t("f32", 6, 9), t("f32", 6, 2), t("f32", 2)),
    "cpy": lambda g: g.cpy(t("f32", 6), t("f16", 7)),
    "concat": lambda g: g.concat(t("f32", 6, 2), t("f32", 5, 2), 1),
    "concat types": lambda g: g.concat(t("f32", 6, 2), t("f16", 6, 2), 1),
    "repeat": lambda g: g.repeat(t("f32", 6, 2), (9, 2)),
    "swiglu halves": lambda g: g.swiglu(t("f32", 7)),
    "swiglu": lambda g: g.swiglu(t("f32", 6), t("f32", 8)),
    "rope dims": lambda g: g.rope(t("f32", 6, 2, 3), t("i32", 3), None, 8),
    "rope odd": lambda g: g.rope(t("f32", 6, 2, 3), t("i32", 3), None, 5),
    "rope positions": lambda g: g.rope(t("f32", 6, 2, 3), t("i32", 2), None, 6),
    "rope mode": lambda g: g.rope(t("f32", 6, 2, 3), t("i32", 3), None, 6, "sideways"),
    "rope factors": lambda g: g.rope(t("f32", 6, 2, 3), t("i32", 3), t("f32", 2), 6),
    "soft_max mask": lambda g: g.soft_max(t("f32", 6, 2), t("f32", 5, 2)),
    "soft_max mask rows": lambda g: g.soft_max(t("f32", 6, 2), t("f32", 6, 1)),
    "soft_max alibi": lambda g: g.soft_max(t("f32", 6, 2), max_bias=8.0),
    "soft_max sinks": lambda g: g.soft_max(t("f32", 6, 2, 4), None, t("f32", 3)),
    "flash sizes": lambda g: g.flash_attn(*(t("f32", n, 5, 2) for n in (6, 7, 6))),
    "flash cells": lambda g: g.flash_attn(t("f32", 6, 5, 2), t("f32", 6, 4, 2), t("f32", 6, 3, 2)),
    "flash heads": lambda g: g.flash_attn(t("f32", 6, 5, 3), t("f32", 6, 4, 2), t("f32", 6, 4, 2)),
    "top_k": lambda g: g.top_k(t("f32", 6), 7),
    "argsort": lambda g: g.argsort(t("f32", 6), "up"),
    "argmax": lambda g: g.argmax(t("f32", 6, 2, 2)),
}


@pytest.mark.parametrize("name", BAD)
def test_sources_that_do_not_fit_are_refused(name):
    with pytest.raises(ShapeError, match=name.split()[0].replace("flash", "flash_attn")):
        BAD[name](Builder())
