"""The allocator: reuse, what must never be overwritten, in place, and no two live tensors in one
place."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.backend.backend import BufferType
from llamapy.engine import Allocator, Engine
from llamapy.engine.memory import Pool, lay_out, owner
from llamapy.graph import OUTPUT, Builder, Tensor
from tests.engine.graphs import HOST, Host, ffn, outputs, random_graph, random_inputs, truth, weight

seeds = st.integers(0, 1 << 30)


def places(g, home=lambda t: HOST):
    return lay_out(g.graph, home, Allocator([Host()]).is_external)


# -- the pool -------------------------------------------------------------------------------------


def test_the_smallest_block_that_fits_is_taken_and_neighbours_merge():
    pool = Pool()
    a, b, c, d, e = (pool.take(n) for n in (256, 64, 128, 64, 64))
    assert (a, b, c, d, e) == (0, 256, 320, 448, 512) and pool.peak == 576
    pool.give(a, 256)
    pool.give(c, 128)
    assert pool.take(128) == c  # not the larger block at 0
    pool.give(b, 64)
    assert pool.take(320) == 0  # a and b are one block now
    pool.give(e, 64)
    pool.give(d, 64)
    assert pool.take(1024) == 448  # what is free at the top is part of the new room
    assert pool.peak == 448 + 1024


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=60), seeds)
def test_blocks_never_overlap_and_free_room_is_never_lost(steps, seed):
    rng, pool, used = np.random.default_rng(seed), Pool(), {}
    for take, n in steps:
        if take or not used:
            at = pool.take(64 * n)
            cells = set(range(at // 64, at // 64 + n))
            assert not cells & set().union(*used.values())
            used[at] = cells
        else:
            at = list(used)[rng.integers(len(used))]
            pool.give(at, 64 * len(used.pop(at)))
    for at, cells in used.items():
        pool.give(at, 64 * len(cells))
    assert pool.top == 0 and pool.take(64) == 0


# -- reuse ----------------------------------------------------------------------------------------


def test_ten_layers_take_little_more_than_two():
    needed = [places(ffn(n, np.random.default_rng(0))) for n in (2, 10)]
    two, ten = (sum(layout.peak.values()) for layout in needed)
    assert ten == two
    assert ten < needed[1].total / 10


def test_results_are_right_although_memory_is_reused():
    rng = np.random.default_rng(1)
    g = ffn(10, rng)
    inputs = random_inputs(g, rng)
    engine = Engine([Host()])
    run = engine.prepare(g.graph)
    run.set(g.inputs["x"], inputs["x"])
    run.run()
    np.testing.assert_allclose(
        run.get(g.taps["out"]), truth(g, inputs)[id(g.taps["out"])], 1e-5, 1e-5
    )


def test_an_output_that_is_not_marked_is_overwritten():
    """The planted fault: without OUTPUT a layer's result does not survive; with it, it does."""
    rng = np.random.default_rng(2)
    for marked in (True, False):
        g = ffn(6, rng)
        middle = g.taps["blk.2.out"]
        middle.flags |= OUTPUT if marked else 0
        inputs = random_inputs(g, rng)
        run = Engine([Host()]).prepare(g.graph)
        run.set(g.inputs["x"], inputs["x"])
        run.run()
        survives = np.allclose(run.get(middle), truth(g, inputs)[id(middle)], atol=1e-5)
        assert survives == marked


def test_inputs_keep_their_contents():
    rng = np.random.default_rng(3)
    g = ffn(4, rng)
    x = rng.standard_normal((8, 32)).astype("f4")
    run = Engine([Host()]).prepare(g.graph)
    run.set(g.inputs["x"], x)
    run.run()
    first = run.get(g.taps["out"])
    assert np.array_equal(run.get(g.inputs["x"])[0, 0], x)
    run.run()
    assert np.array_equal(run.get(g.taps["out"]), first)


def test_reserved_buffers_serve_smaller_graphs_and_grow_for_larger_ones():
    def graph(n_tokens):
        g = Builder()
        x = g.input("x", "f32", (32, n_tokens))
        g.graph.output(g.add(g.exp(x), g.neg(x)))
        return g.graph

    memory = Allocator([Host()])
    layout = memory.reserve(graph(64))
    assert memory.n_grown == 1 and memory.n_bytes == sum(layout.peak.values()) > 0
    for n in (1, 7, 64):
        memory.allocate(graph(n))
    assert memory.n_grown == 1
    memory.allocate(graph(65))
    assert memory.n_grown == 2
    assert f"without reuse {memory.layout.total:,}" in memory.report()


def test_reserving_gives_no_memory():
    g = ffn(1, np.random.default_rng(0))
    Allocator([Host()]).reserve(g.graph)
    assert all(n.data is None for n in g.graph.nodes)


def test_tensors_with_memory_are_left_alone_and_views_share():
    rng = np.random.default_rng(4)
    g, cache = Builder(), weight((8, 6), rng)
    before = cache.data
    row = g.view(cache, (8, 2), cache.nb, 64)
    y = g.neg(row)
    g.graph.output(g.exp(g.reshape(y, (16,))))
    layout = Allocator([Host()]).allocate(g.graph)
    assert cache.data == before and row.data == before + 64 and row.buffer is cache.buffer
    assert id(cache) not in layout.places and id(row) not in layout.places
    flat = g.graph.nodes[2]
    assert flat.data == y.data and flat.buffer is y.buffer


def test_a_graph_can_be_allocated_again():
    g = ffn(2, np.random.default_rng(0))
    memory = Allocator([Host()])
    first = memory.allocate(g.graph).places
    assert memory.allocate(g.graph).places == first


def test_addresses_are_aligned():
    g, rng = Builder(), np.random.default_rng(0)
    for i in range(6):
        g.graph.output(g.neg(g.input(f"x{i}", "f32", (int(rng.integers(1, 40)),))))
    Allocator([Host()]).allocate(g.graph)
    assert all(t.data % 64 == 0 for t in (*g.graph.nodes, *g.graph.leafs))


# -- in place, rule by rule -----------------------------------------------------------------------


def in_place(change=lambda g, x, y: None, op="add", home=lambda t: HOST, source=None):
    """Whether op(y, x) takes y's place, where y = exp(x)."""
    g = Builder()
    x = g.input("x", "f32", (8, 4))
    y = (source or (lambda g, x: g.exp(x)))(g, x)
    extra = change(g, x, y)
    node = getattr(g, op)(y, x) if op == "add" else getattr(g, op)(y)
    g.graph.output(node)
    if extra is not None:
        g.graph.output(extra)
    layout = places(g, home)
    return layout.places[id(node)] == layout.places[id(owner(y))]


def test_a_source_that_nobody_else_reads_is_replaced():
    assert in_place()
    assert in_place(op="rms_norm")
    assert in_place(source=lambda g, x: g.reshape(g.exp(x), x.ne))  # through a view of all of it


def test_not_if_the_op_does_not_allow_it():
    assert not in_place(op="cont") and not in_place(op="norm")


def test_not_if_there_is_a_second_reader_even_through_a_view():
    assert not in_place(lambda g, x, y: g.neg(y))
    assert not in_place(lambda g, x, y: g.neg(g.reshape(y, (32,))))
    assert not in_place(lambda g, x, y: g.neg(g.view(y, (8, 1), y.nb, 32)))


def test_not_if_it_reads_the_source_twice():
    g = Builder()
    y = g.exp(g.input("x", "f32", (8, 4)))
    node = g.graph.output(g.add(y, g.view(y, (8, 1))))
    layout = places(g)
    assert layout.places[id(node)] != layout.places[id(y)]


def test_not_if_the_source_is_an_output():
    def mark(g, x, y):
        y.flags |= OUTPUT

    def mark_a_view(g, x, y):
        return g.reshape(y, (32,))  # an output that shows y

    assert not in_place(mark)
    assert not in_place(mark_a_view)


def test_not_if_the_source_is_an_input():
    assert not in_place(source=lambda g, x: x)


def test_not_if_the_source_is_a_weight():
    g, w = Builder(), weight((8, 4), np.random.default_rng(0))
    node = g.graph.output(g.exp(w))
    Allocator([Host()]).allocate(g.graph)
    assert node.data != w.data


def test_not_if_the_layout_is_another():
    assert not in_place(
        source=lambda g, x: g.repeat(g.exp(g.view(x, (1, 4), (4, 32))), (8, 4)), op="cont"
    )
    g = Builder()
    small = g.exp(g.input("x", "f32", (8, 1)))
    node = g.graph.output(g.add(g.input("y", "f32", (8, 4)), small))
    layout = places(g)
    assert layout.places[id(node)] != layout.places[id(small)]
    assert not in_place(source=lambda g, x: g.permute(g.exp(x), (0, 2, 1, 3)), op="rms_norm")


def test_not_if_the_source_is_only_a_part():
    assert not in_place(source=lambda g, x: g.view(g.exp(g.repeat(x, (8, 8))), (8, 4)))
    assert not in_place(source=lambda g, x: g.view(g.exp(g.repeat(x, (8, 8))), (8, 4), None, 64))


def test_not_if_the_memory_is_another():
    other = BufferType("other")
    assert not in_place(home=lambda t: other if t.op is not None and t.op.name == "exp" else HOST)


def test_the_second_source_can_be_replaced_too():
    g = Builder()
    x = g.input("x", "f32", (8, 4))
    y = g.exp(x)
    node = g.graph.output(g.sub(x, y))
    layout = places(g)
    assert layout.places[id(node)] == layout.places[id(y)] and layout.inplace == 1


# -- random graphs --------------------------------------------------------------------------------


def lives(g):
    """{id(tensor): (first, last)} by brute force: from its node to the last that reads or shows
    it."""
    end, found = len(g.graph.nodes), {}
    for tensor in (*g.graph.leafs, *g.graph.nodes):
        if tensor.view_src is not None:
            continue
        touching = [
            i
            for i, n in enumerate(g.graph.nodes)
            if owner(n) is tensor or any(owner(s) is tensor for s in n.src)
        ]
        shows = [n for n in g.graph.nodes if owner(n) is tensor and n.flags & OUTPUT]
        first = -1 if tensor.op is None else g.graph.nodes.index(tensor)
        found[id(tensor)] = (first, end if shows or tensor.op is None else max([first, *touching]))
    return found


@settings(deadline=None, max_examples=25)
@given(seeds)
def test_live_tensors_never_share_bytes(seed):
    g = random_graph(np.random.default_rng(seed), 40)
    Allocator([Host()]).allocate(g.graph)
    life = lives(g)
    owners = [t for t in (*g.graph.leafs, *g.graph.nodes) if t.view_src is None]
    for i, a in enumerate(owners):
        for b in owners[i + 1 :]:
            overlap = a.data < b.data + b.n_bytes and b.data < a.data + a.n_bytes
            (a0, a1), (b0, b1) = life[id(a)], life[id(b)]
            if not overlap or a1 < b0 or b1 < a0:
                continue
            # Only a result in the place of a source that it is the last to read.
            old, new = (a, b) if a1 == b0 else (b, a)
            assert life[id(old)][1] == life[id(new)][0], (a, b)
            assert new.op.inplace and old.data == new.data and old.n_bytes == new.n_bytes
            assert sum(owner(s) is old for n in g.graph.nodes for s in reads(n)) == 1


def reads(node):
    return node.src if node.op.computes else ()


@settings(deadline=None, max_examples=25)
@given(seeds)
def test_random_graphs_give_what_they_give_without_reuse(seed):
    rng = np.random.default_rng(seed)
    g = random_graph(rng, 40)
    inputs = random_inputs(g, rng)
    engine = Engine([Host()])
    run = engine.prepare(g.graph)
    for name, tensor in g.inputs.items():
        if tensor.data is not None:
            run.set(tensor, inputs[name])
    run.run()
    want = truth(g, inputs)
    for tensor in outputs(g):
        assert np.array_equal(run.get(tensor), want[id(tensor)]), tensor


def test_a_tensor_that_nobody_reads_frees_its_place():
    g = Builder()
    x = g.input("x", "f32", (8, 4))
    g.expand(g.neg(x))
    g.graph.output(g.exp(x))
    a, b = g.graph.nodes
    layout = places(g)
    assert layout.places[id(a)] == layout.places[id(b)]


def test_leafs_without_memory_are_placed_first():
    g, table = Builder(), Tensor("f32", (8, 4), name="table")
    g.graph.output(g.exp(g.neg(table)))
    layout = places(g)
    assert layout.places[id(table)][1] == 0
