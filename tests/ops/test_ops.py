"""Every case of the table on every backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from llamapy.backend.backend import Backend
from llamapy.backend.cpu.device import CPU
from llamapy.backend.cpu.kernels.mul_mat_panel import FEW
from llamapy.backend.reference import Reference
from llamapy.graph.op import registry
from tests.ops.case import Case, check, run_case
from tests.ops.cases import CASES, FLOAT, in_place

EXACT_BITS = 1e-8  # activations of 16 bits


def test_every_op_that_computes_has_cases() -> None:
    missing = {name for name, op in registry().items() if op.computes} - {c.op for c in CASES}
    assert not missing


def test_no_case_is_there_twice() -> None:
    twice = [name for name, n in Counter(map(str, CASES)).items() if n > 1]
    assert not twice


@pytest.fixture(scope="module", params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param == "reference":
        yield Reference()
        return
    cpu = CPU(threads=2)
    yield cpu
    cpu.close()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_op(case: Case, backend: Backend) -> None:
    check(case, *run_case(case, backend))


PREFILL = [c for c in CASES if c.op == "mul_mat" and c.src[1].ne[1] > FEW and c.nmse > FLOAT]


@pytest.fixture(scope="module")
def exact() -> Iterator[Backend]:
    cpu = CPU(threads=2, activation_bits=16)
    yield cpu
    cpu.close()


@pytest.mark.parametrize("case", PREFILL, ids=str)
def test_sixteen_bits(case: Case, exact: Backend) -> None:
    check(case, *run_case(case, exact), min(case.nmse, EXACT_BITS))


@pytest.mark.parametrize(("case", "over"), in_place(), ids=str)
def test_in_place(case: Case, over: int, backend: Backend) -> None:
    check(case, *run_case(case, backend, over))
