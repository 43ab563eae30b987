"""The CPU backend beyond single ops: barriers, shared activations, stopping."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llamapy.backend.backend import view
from llamapy.backend.cpu import record
from llamapy.backend.cpu.device import CPU
from llamapy.core.errors import Aborted, UsageError
from llamapy.graph import Builder, Tensor
from llamapy.quants import codec
from tests.ops.fill import draw, valid_blocks


@pytest.fixture(scope="module")
def cpu() -> Iterator[CPU]:
    backend = CPU(threads=2)
    yield backend
    backend.close()


def placed(cpu: CPU, tensor: Tensor, values: np.ndarray[Any, Any] | None = None) -> Tensor:
    cpu.allocate(tensor.n_bytes + 64).place(tensor, 0)
    if values is not None:
        cpu.set_tensor(tensor, values)
    return tensor


def numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    return view(tensor).view(np.float32).reshape(tensor.ne[::-1])


def products(cpu: CPU, n: int, m: int) -> tuple[list[Tensor], list[np.ndarray[Any, Any]]]:
    """Three products of one source (as q, k and v), and what they should be."""
    rng, g = np.random.default_rng(0), Builder()
    x = rng.standard_normal((m, 64), np.float32)
    source = placed(cpu, Tensor("f32", (64, m)), x)
    nodes, want = [], []
    for _ in range(3):
        w = rng.standard_normal((n, 64), np.float32)
        blocks = cpu_blocks(w)
        weights = placed(cpu, Tensor("q8_0", (64, n)), blocks)
        nodes.append(placed(cpu, g.mul_mat(weights, source)))
        want.append(x @ dequantized(blocks, n).T)
    return nodes, want


def cpu_blocks(w: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    return np.asarray(quantize(w, GGMLQuantizationType.Q8_0))


def dequantized(blocks: np.ndarray[Any, Any], n: int) -> np.ndarray[Any, Any]:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    return np.asarray(dequantize(blocks.reshape(n, -1), GGMLQuantizationType.Q8_0))


def test_products_of_one_source_round_it_once_and_need_no_barrier_between(cpu: CPU) -> None:
    nodes, want = products(cpu, 48, 2)
    program = cpu.compile(nodes)
    names = [step.kernel.__name__ for step in program.steps]
    assert names == ["quantize", "mul_mat_rows", "mul_mat_rows", "mul_mat_rows"]
    assert list(program.records[:4, record.BARRIER]) == [1, 0, 0, 1]
    program.run()
    for node, truth in zip(nodes, want):
        assert np.square(numbers(node)[0, 0] - truth).sum() < 1e-3 * np.square(truth).sum()


def test_a_step_that_reads_what_the_last_one_wrote_waits(cpu: CPU) -> None:
    g = Builder()
    x = placed(cpu, Tensor("f32", (4096, 64)), np.ones((64, 4096), np.float32))
    chain = x
    nodes = []
    for _ in range(6):
        chain = placed(cpu, g.scale(chain, s=2.0))
        nodes.append(chain)
    program = cpu.compile(nodes)
    assert list(program.records[: len(nodes), record.BARRIER]) == [1] * 6
    for _ in range(20):
        program.run()
        assert (numbers(chain) == 64).all()


def test_a_node_asked_about_reads_the_sources_that_it_has_when_compiled(cpu: CPU) -> None:
    """The scheduler puts copies in the place of sources after it has asked."""
    nodes, want = products(cpu, 32, 4)
    node, other = nodes[0], nodes[1].src[0]
    assert cpu.supports_op(node)
    cpu.compile([node]).run()
    assert np.allclose(numbers(node), want[0], atol=0.5)
    assert cpu.supports_op(node)
    node.src = (other, node.src[1])
    cpu.compile([node]).run()
    assert np.allclose(numbers(node), want[1], atol=0.5)
    assert not np.allclose(want[0], want[1], atol=0.5)


def test_an_abort_from_another_thread_ends_a_long_run_soon(cpu: CPU) -> None:
    g = Builder()
    rng = np.random.default_rng(1)
    w = placed(cpu, Tensor("f32", (2048, 8192)), rng.standard_normal((8192, 2048), np.float32))
    x = placed(cpu, Tensor("f32", (2048, 512)), rng.standard_normal((512, 2048), np.float32))
    y = placed(cpu, g.mul_mat(w, x))
    program = cpu.compile([y] * 20)
    timer = threading.Timer(0.2, cpu.abort)
    start = time.perf_counter()
    timer.start()
    with pytest.raises(Aborted):
        program.run()
    assert time.perf_counter() - start < 1.5
    cpu.compile([y]).run()  # and it can be used again
    sample = numbers(y)[0, 0, :4, :4]
    truth = numbers(x)[0, 0, :4] @ numbers(w)[0, 0, :4].T
    np.testing.assert_allclose(sample, truth, rtol=1e-4, atol=1e-3)


def test_one_and_two_threads_give_the_same_bits() -> None:
    found = []
    for threads in (1, 2):
        backend = CPU(threads=threads)
        nodes, _ = products(backend, 100, 33)
        backend.compile(nodes).run()
        found.append([numbers(node).copy() for node in nodes])
        backend.close()
    for one, two in zip(*found):
        assert (one.view(np.uint32) == two.view(np.uint32)).all()


def test_activations_have_as_many_bits_as_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Builder()
    node = g.mul_mat(Tensor("q4_0", (64, 32)), Tensor("f32", (64, 20)))

    def first_step(wished: int | None = None) -> str:
        cpu = CPU(threads=1, activation_bits=wished)
        try:
            return cpu._steps([node])[0].kernel.__name__
        finally:
            cpu.close()

    monkeypatch.delenv("LLAMAPY_ACTIVATIONS", raising=False)
    assert first_step() == first_step(8) == "quantize_quartets" and first_step(16) == "quantize"
    monkeypatch.setenv("LLAMAPY_ACTIVATIONS", "16")
    assert first_step() == "quantize" and first_step(8) == "quantize_quartets"
    monkeypatch.setenv("LLAMAPY_ACTIVATIONS", "12")
    with pytest.raises(UsageError, match="'12', neither 8 nor 16"):
        first_step()


@pytest.mark.parametrize("kind", ["q4_0", "q4_1", "q8_0", "q4_K", "q5_K", "q6_K", "iq4_xs"])
@pytest.mark.parametrize("columns", [1, 9])
def test_a_weight_that_is_no_number_is_not_hidden(cpu: CPU, kind: str, columns: int) -> None:
    """A row with a NaN for a scale gives NaN, the others numbers."""
    k = 512
    n = k // codec.get(kind).n_values
    blocks = np.resize(valid_blocks(kind), (20, n)).copy()
    blocks["d"][7, 1] = np.nan
    w = placed(cpu, Tensor(kind, (k, 20)), blocks)
    x = placed(cpu, Tensor("f32", (k, columns)), np.ones((columns, k), np.float32))
    y = placed(cpu, Builder().mul_mat(w, x))
    cpu.compile([y]).run()
    found = np.isnan(numbers(y)[0, 0])
    assert found[:, 7].all() and not np.delete(found, 7, axis=1).any()


@pytest.mark.parametrize("kind", ["q4_0", "q8_0", "q4_K", "q6_K", "iq4_xs", "q3_K", "bf16"])
@pytest.mark.parametrize("columns", [1, 5, 9])
def test_a_token_without_numbers_has_none_afterwards(cpu: CPU, kind: str, columns: int) -> None:
    """A norm makes all of a token NaN if one number is: no product may make numbers of that."""
    k = 512
    w = placed(cpu, Tensor(kind, (k, 20)), draw_weights(kind, k))
    values = np.ones((columns, k), np.float32)
    values[columns // 2] = np.nan
    x = placed(cpu, Tensor("f32", (k, columns)), values)
    y = placed(cpu, Builder().mul_mat(w, x))
    cpu.compile([y]).run()
    found = np.isnan(numbers(y)[0, 0])
    assert found[columns // 2].all() and not np.delete(found, columns // 2, axis=0).any()


def draw_weights(kind: str, k: int) -> np.ndarray[Any, Any]:
    """Twenty rows of k weights."""
    shape = (1, 1, 20, k // codec.get(kind).n_values)
    return draw(np.random.default_rng(0), codec.get(kind), shape, "normal", 0.0, 1.0)
