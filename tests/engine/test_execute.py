"""Running: again with new inputs, across backends, experts copied by need, stopping, timing."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from llamapy.backend.backend import Program
from llamapy.backend.reference import Reference
from llamapy.core.errors import Aborted
from llamapy.engine import Engine
from llamapy.engine.trace import Trace
from llamapy.graph import Builder
from tests.engine.graphs import HOST, Host, ffn, truth, weight
from tests.engine.test_schedule import ACC, Device


@pytest.mark.parametrize("homes", [[HOST] * 4, [HOST, ACC, HOST, ACC], [ACC] * 4])
def test_the_same_execution_runs_again_with_new_inputs(homes):
    rng = np.random.default_rng(0)
    g = ffn(4, rng, homes)
    inputs = [rng.standard_normal((8, 32)).astype("f4") for _ in range(3)]
    want = [truth(g, {"x": x})[id(g.taps["out"])] for x in inputs]
    run = Engine([Device(), Host()]).prepare(g.graph)
    for x, result in zip(inputs, want):
        run.set(g.inputs["x"], x)
        run.run()
        assert np.allclose(run.get(g.taps["out"]), result, 1e-5, 1e-5)


def test_two_graphs_of_one_engine_take_turns_in_its_memory():
    rng = np.random.default_rng(0)
    graphs = [ffn(2, rng), ffn(3, rng)]
    engine = Engine([Host()])
    for g in graphs:
        engine.reserve(g.graph)
    size = engine.n_bytes
    runs = [engine.prepare(g.graph) for g in graphs]
    assert engine.n_bytes == size > 0
    x = rng.standard_normal((8, 32)).astype("f4")
    for _ in range(2):
        for g, run in zip(graphs, runs):
            run.set(g.inputs["x"], x)
            run.run()
            assert np.allclose(
                run.get(g.taps["out"]), truth(g, {"x": x})[id(g.taps["out"])], 1e-5, 1e-5
            )


def test_set_takes_any_number_type_and_refuses_another_size():
    g = Builder()
    ids = g.input("ids", "i32", (3,))
    x = g.input("x", "f16", (3,))
    g.graph.output(g.cast(ids, "f32"))
    g.graph.output(g.cast(x, "f32"))
    run = Engine([Host()]).prepare(g.graph)
    run.set(ids, [1, 2, 3])
    run.set(x, np.array([0.1, 1, 2], "f8"))
    run.run()
    a, b = g.graph.nodes
    assert run.get(a).ravel().tolist() == [1, 2, 3]
    assert np.array_equal(run.get(b).ravel(), np.array([0.1, 1, 2], "f2").astype("f4"))
    with pytest.raises(AssertionError):
        run.set(ids, [1, 2])


class Counting(Device):
    """Notes how many bytes whole copies move."""

    copied = 0

    def copy_tensor(self, source, target):
        self.copied += source.n_bytes
        super().copy_tensor(source, target)


def experts_graph(rng):
    g = Builder()
    w = weight((8, 4, 16), rng, name="experts")
    x, ids = g.input("x", "f32", (8, 1, 3)), g.input("ids", "i32", (2, 3))
    g.taps["out"] = g.graph.output(g.mul_mat_id(w, x, ids))
    return g, w


def test_only_the_experts_that_are_chosen_are_copied():
    rng = np.random.default_rng(1)
    g, w = experts_graph(rng)
    device = Counting(wants=("mul_mat_id",))
    chosen = np.array([[3, 7], [7, 3], [9, 3]], "i4")
    x = rng.standard_normal((3, 1, 8)).astype("f4")
    want = truth(g, {"x": x, "ids": chosen})[id(g.taps["out"])]
    run = Engine([device, Host()]).prepare(g.graph)
    copy = run.plan.splits[0].copies[0]
    assert copy.name == "acc#experts#0" and run.plan.splits[0].backend is device
    copy.buffer.owner[copy.data - copy.buffer.address :][: copy.n_bytes] = 0xFF
    run.set(g.inputs["x"], x)
    run.set(g.inputs["ids"], chosen)
    run.run()
    assert np.allclose(run.get(g.taps["out"]), want, 1e-5, 1e-6)
    assert device.copied == g.inputs["x"].n_bytes + g.inputs["ids"].n_bytes
    there = np.isfinite(run.get(copy)[0].reshape(16, -1)).all(1)
    assert np.flatnonzero(there).tolist() == [3, 7, 9]


def test_all_experts_are_copied_if_another_node_reads_them():
    rng = np.random.default_rng(1)
    g, w = experts_graph(rng)
    g.taps["sum"] = g.graph.output(g.sum_rows(w))
    run = Engine([Counting(wants=("mul_mat_id", "sum_rows")), Host()]).prepare(g.graph)
    inputs = {"x": np.ones((3, 1, 8), "f4"), "ids": np.zeros((3, 2), "i4")}
    for name, numbers in inputs.items():
        run.set(g.inputs[name], numbers)
    run.run()
    numbers = w.buffer.owner.view("f4").reshape(1, 16, 4, 8)
    assert np.allclose(run.get(g.taps["sum"])[..., 0], numbers.sum(-1), 1e-5, 1e-5)


def test_aborting_stops_between_nodes_and_the_next_run_is_whole():
    rng = np.random.default_rng(2)
    g = ffn(3, rng)
    engine = Engine([Host()])
    run = engine.prepare(g.graph)
    x = rng.standard_normal((8, 32)).astype("f4")
    run.set(g.inputs["x"], x)
    run.run()
    first = run.get(g.taps["out"])
    steps = run.programs[0].steps
    original = steps[5].run
    reached = []
    steps[5].run = lambda: (reached.append(5), thread_aborts(engine))
    steps[6].run, after = lambda: reached.append(6), steps[6].run
    with pytest.raises(Aborted):
        run.run()
    assert reached == [5]
    steps[5].run, steps[6].run = original, after
    run.run()
    assert np.array_equal(run.get(g.taps["out"]), first)


def thread_aborts(engine):
    thread = threading.Thread(target=engine.abort)
    thread.start()
    thread.join()


def test_a_trace_names_every_node_with_its_backend_and_time():
    g = ffn(2, np.random.default_rng(3), [HOST, ACC])
    backends = [Device(), Host()]
    run = Engine(backends).prepare(g.graph)
    run.set(g.inputs["x"], np.zeros((8, 32), "f4"))
    with Trace(backends) as trace:
        run.run()
    assert [(e.backend, e.op) for e in trace.events].count(("acc", "mul_mat")) == 3
    assert len(trace.events) == sum(len(s.nodes) for s in run.plan.splits) == 12
    assert all(e.seconds > 0 for e in trace.events)
    assert {e.node for e in trace.events} >= {"blk.0.out", "blk.1.out"}
    lines = trace.by_op()
    assert sum(n for *_, n, _ in lines) == 12 and lines == sorted(lines, key=lambda line: -line[-1])
    assert all(b.trace is None for b in backends)
    run.run()
    assert len(trace.events) == 12


def test_backends_are_waited_for_where_the_next_one_begins():
    waits = []

    class Slow(Host):
        def synchronize(self):
            waits.append("host")

    class SlowDevice(Device):
        def synchronize(self):
            waits.append("acc")

    g = ffn(3, np.random.default_rng(0), [HOST, ACC, HOST])
    run = Engine([SlowDevice(), Slow()]).prepare(g.graph)
    waits.clear()
    run.run()
    assert waits == ["host", "acc", "host"] and all(isinstance(p, Program) for p in run.programs)


def test_an_engine_of_the_reference_alone_reads_mapped_weights_in_place():
    g = ffn(2, np.random.default_rng(0))
    run = Engine([Reference()]).prepare(g.graph)
    assert len(run.plan.splits) == 1 and not run.plan.splits[0].copies
