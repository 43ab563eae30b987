"""The scheduler, pass by pass, and that cutting a graph never changes its results."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.backend.backend import BufferType
from llamapy.backend.reference import Reference
from llamapy.core.errors import LlamapyError
from llamapy.engine import Engine, Schedule
from llamapy.graph import Builder
from tests.engine.graphs import HOST, Host, ffn, outputs, random_graph, random_inputs, truth, weight

ACC, ACC2 = BufferType("acc", host=False), BufferType("acc2", host=False)


class Device(Reference):
    """An accelerator with memory of its own; may be told to lack ops, and to want some
    (offload)."""

    def __init__(self, name="acc", memory=ACC, *, lacks=(), wants=(), reads=()):
        super().__init__(reads_host=False)
        self.name, self.buffer_type = name, memory
        self.lacks, self.wants, self.reads = lacks, wants, reads

    def supports_op(self, node):
        return node.op.name not in self.lacks and super().supports_op(node)

    def supports_buffer(self, kind):
        return kind == self.buffer_type or kind in self.reads

    def offload_op(self, node):
        return node.op.name in self.wants


def rng():
    return np.random.default_rng(7)


def chain(*steps, home=ACC):
    """x -> step -> step ...: "mul_mat" with a weight in `home`, "cpu" a product with one in plain
    memory."""
    g, r = Builder(), rng()
    h = g.input("x", "f32", (8, 4))
    for i, step in enumerate(steps):
        if step in ("mul_mat", "cpu"):
            w = weight((8, 8), r, home if step == "mul_mat" else HOST, f"w{i}")
            h = g.mul_mat(w, h)
        else:
            h = getattr(g, step)(h)
        h.named(f"{step}{i}")
    g.graph.output(h)
    return g


def where(plan):
    """The name of the backend of every computed node, in order."""
    return [split.backend.name for split in plan.splits for _ in split.nodes]


def plan(g, *backends):
    return Schedule(backends or (Device(), Host())).plan(g.graph)


# -- places ---------------------------------------------------------------------------------------


def test_weights_decide():
    assert where(plan(chain("mul_mat", "cpu", "mul_mat"))) == ["acc", "host", "acc"]


def test_accelerators_spread_down_and_up_but_never_past_the_last_backend():
    steps = ("exp", "tanh", "mul_mat", "neg", "cpu", "neg", "neg", "mul_mat", "exp")
    want = ["acc", "acc", "acc", "acc", "host", "acc", "acc", "acc", "acc"]
    assert where(plan(chain(*steps))) == want


def test_without_a_weight_on_it_the_last_backend_takes_what_is_between_its_own():
    assert where(plan(chain("exp", "cpu", "neg", "cpu", "exp"))) == ["host"] * 5
    assert where(plan(chain("exp", "neg"))) == ["host"] * 2  # where the inputs are


def test_the_rest_spreads_after_the_accelerators():
    """What the accelerator lacks goes to the neighbour that is placed."""
    steps = ("mul_mat", "tanh", "exp", "cpu")
    device = Device(lacks=("tanh",))
    assert where(plan(chain(*steps), device, Host())) == ["acc", "host", "acc", "host"]


def test_ops_that_an_accelerator_lacks_go_where_most_can_be_read():
    device = Device(lacks=("tanh",))
    assert where(plan(chain("mul_mat", "tanh", "mul_mat"), device, Host())) == [
        "acc",
        "host",
        "acc",
    ]


def test_weights_of_rope_and_attention_do_not_decide():
    g, r = Builder(), rng()
    x = g.mul_mat(weight((8, 8), r, ACC), g.input("x", "f32", (8, 4)))
    factors = weight((4,), r, HOST)
    turned = g.rope(g.reshape(x, (8, 1, 4)), g.input("pos", "i32", (4,)), factors, 8)
    g.graph.output(turned)
    made = plan(g)
    assert where(made) == ["acc", "acc"]
    assert factors in made.splits[-1].inputs


def test_a_better_backend_with_the_same_memory_takes_what_it_can():
    """As BLAS beside the CPU: plain memory, only products."""
    blas = Device("blas", HOST, lacks=("exp", "neg", "tanh"))
    assert where(plan(chain("exp", "cpu", "neg"), blas, Host())) == ["host", "blas", "host"]


@pytest.mark.parametrize(("reads", "want"), [((ACC,), "blas"), ((), "host")])
def test_the_upgrade_needs_every_source_to_be_readable(reads, want):
    """The sum is first on host, with its neighbour; the other source is in acc's memory."""
    g, r = Builder(), rng()
    a = g.mul_mat(weight((8, 8), r, ACC), g.input("x", "f32", (8, 4)))
    b = g.mul_mat(weight((8, 8), r), g.input("y", "f32", (8, 4)))
    g.graph.output(g.add(a, b))
    blas = Device("blas", HOST, lacks=("mul_mat",), reads=reads)
    assert where(plan(g, Device(), blas, Host())) == ["acc", "host", want]


def test_writes_happen_where_the_memory_is():
    g, r = Builder(), rng()
    cache = weight((8, 6), r, ACC, "cache")
    cache.buffer.weights = False
    x = g.mul_mat(weight((8, 8), r), g.input("x", "f32", (8, 2)))
    stored = g.set_rows(cache, x, g.input("ids", "i64", (2,)))
    g.graph.output(stored)
    made = plan(g)
    assert where(made) == ["host", "acc"]
    assert [t.name for t in made.splits[1].copies][1:] == ["acc#ids#0"]


def test_writes_into_results_stay_with_them():
    g, r = Builder(), rng()
    table = g.mul_mat(weight((8, 6), r), g.input("x", "f32", (8, 6)))
    rows = g.mul_mat(weight((8, 6), r, ACC), g.input("y", "f32", (8, 2)))
    stored = g.set_rows(table, rows, g.input("ids", "i64", (2,)))
    g.graph.output(g.exp(stored))
    made = plan(g)
    assert made.backend(stored).name == made.backend(table).name == "host"
    assert stored in next(s for s in made.splits if stored in s.nodes).nodes


def test_memory_whose_backend_lacks_the_op_is_an_error():
    g = Builder()
    cache = weight((8, 6), rng(), ACC, "cache")
    g.graph.output(g.cpy(g.input("x", "f32", (8, 6)), cache))
    with pytest.raises(LlamapyError, match="no backend computes .* into memory of type acc"):
        plan(g, Device(lacks=("cpy",)), Host())


def test_results_whose_backend_cannot_write_rows_are_an_error():
    class Less(Host):
        def supports_op(self, node):
            return node.op.name != "set_rows"

    g = Builder()
    table = g.mul_mat(weight((8, 6), rng()), g.input("x", "f32", (8, 6)))
    rows = g.mul_mat(weight((8, 6), rng(), ACC), g.input("y", "f32", (8, 2)))
    g.graph.output(g.exp(g.set_rows(table, rows, g.input("ids", "i64", (2,)))))
    with pytest.raises(LlamapyError, match="host cannot compute .*set_rows"):
        plan(g, Device(), Less())


def test_an_op_that_nobody_has_is_an_error():
    class Less(Host):
        def supports_op(self, node):
            return node.op.name != "tanh"

    with pytest.raises(LlamapyError, match="no backend computes .*tanh"):
        plan(chain("tanh"), Less())


def test_a_backend_alone_is_asked_no_sooner_than_a_graph_is_to_run():
    class Less(Host):
        asked = 0

        def supports_op(self, node):
            Less.asked += 1
            return node.op.name != "tanh"

    alone = Schedule([Less()])
    layout = alone.reserve(chain("exp", "tanh").graph)
    assert Less.asked == 0
    assert layout.peak == Schedule([Host()]).reserve(chain("exp", "tanh").graph).peak
    with pytest.raises(LlamapyError, match="no backend computes .*tanh"):
        alone.allocate(chain("exp", "tanh").graph)
    with pytest.raises(LlamapyError, match="no backend computes .*tanh"):
        Schedule([Device(lacks=("tanh",)), Less()]).reserve(chain("exp", "tanh").graph)


def test_an_accelerator_may_ask_for_ops_whose_weights_are_in_plain_memory():
    g = chain("cpu", "neg")
    made = plan(g, Device(wants=("mul_mat",)), Host())
    assert where(made) == ["acc", "acc"]
    assert [t.name for t in made.splits[0].inputs] == ["w0", "x"]


def test_plain_memory_belongs_to_the_last_backend_even_if_others_read_it():
    assert where(plan(chain("cpu", "mul_mat"), Device(reads=(HOST,)), Host())) == ["host", "acc"]


@pytest.mark.parametrize("n", [0, 17])
def test_the_number_of_backends_is_limited(n):
    with pytest.raises(LlamapyError, match=f"got {n}"):
        Schedule([Host()] * n)


# -- splits ---------------------------------------------------------------------------------------


def test_copies_are_named_and_made_once_a_backend():
    """x is read in two splits of acc: one copy."""
    g, r = Builder(), rng()
    x = g.input("x", "f32", (8, 4))
    a = g.mul_mat(weight((8, 8), r, ACC), x)
    b = g.mul_mat(weight((8, 8), r), a)
    g.graph.output(g.add(g.mul_mat(weight((8, 8), r, ACC), b.named("b")), x))
    made = plan(g)
    assert where(made) == ["acc", "host", "acc", "acc"]
    first, second, third = made.splits
    assert [c.name for c in first.copies] == ["acc#x#0"]
    assert second.inputs == [a] and third.inputs == [b]
    assert third.nodes[1].src[1] is first.copies[0]
    for split in made.splits:
        for source, copy in zip(split.inputs, split.copies):
            assert copy.same_layout(source) and made.home(copy) == split.backend.buffer_type


def test_every_split_reads_only_what_it_can():
    g = ffn(6, rng(), [HOST, HOST, ACC, ACC, HOST, ACC])
    made = Schedule([Device(), Host()]).allocate(g.graph)
    assert len(made.splits) == 4
    for split in made.splits:
        for node in split.nodes:
            assert node.buffer.kind == split.backend.buffer_type
            assert all(split.backend.supports_buffer(s.buffer.kind) for s in node.src)


def test_copied_weights_do_not_pile_up():
    """Each offloaded product gets a split, so that one copied weight takes the place of the
    last."""
    g = chain("cpu", "cpu", "cpu")
    device = Device(wants=("mul_mat",))
    schedule = Schedule([device, Host()])
    made = schedule.allocate(g.graph)
    assert [s.backend.name for s in made.splits] == ["acc"] * 3
    weights = [s.copies[0].data for s in made.splits]
    assert weights[0] in weights[1:] or weights[1] == weights[2]


def test_planning_twice_gives_the_same():
    g = ffn(4, rng(), [HOST, ACC, HOST, ACC])
    schedule = Schedule([Device(), Host()])
    first = schedule.plan(g.graph).describe(nodes=True)
    schedule.reserve(g.graph)
    assert schedule.plan(g.graph).describe(nodes=True) == first
    assert not any(
        s.op is None and s.src for n in schedule.plan(chain("exp").graph).nodes for s in n.src
    )


def test_the_description_names_backends_copies_and_reasons():
    text = plan(chain("exp", "mul_mat", "cpu")).describe(nodes=True)
    assert text.splitlines() == [
        "split 0 on acc: 2 nodes, copies in x (128 B)",
        "  exp0 = exp(acc#x#0)  [from below]",
        "  mul_mat1 = mul_mat(w1, exp0)  [weight]",
        "split 1 on host: 1 nodes, copies in mul_mat1 (128 B)",
        "  cpu2 = mul_mat(w2, host#mul_mat1#0)  [weight]",
    ]


# -- results --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1 << 30))
def test_however_a_graph_is_cut_its_results_are_the_same(seed):
    r = np.random.default_rng(seed)
    homes = [HOST, ACC, ACC2]
    g = random_graph(r, 30, lambda: weight((8, 8), r, homes[r.integers(3)]))
    inputs = random_inputs(g, r)
    lacks = [
        tuple(r.choice(["tanh", "add", "concat", "rms_norm"], r.integers(3))) for _ in range(2)
    ]
    backends = [Device(lacks=lacks[0]), Device("acc2", ACC2, lacks=lacks[1]), Host()]
    want = truth(g, inputs)  # before the plan exchanges sources for copies
    engine = Engine(backends)
    run = engine.prepare(g.graph)
    for name, tensor in g.inputs.items():
        if tensor.data is not None:
            run.set(tensor, inputs[name])
    run.run()
    for tensor in outputs(g):
        got = run.get(tensor)
        assert np.allclose(got, want[id(tensor)], 1e-5, 1e-6), run.describe(nodes=True)
