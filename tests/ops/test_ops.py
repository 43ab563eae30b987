"""Every case of the table on every backend."""

from __future__ import annotations

from collections import Counter

import pytest

from llamapy.backend.backend import Backend
from llamapy.backend.reference import Reference
from llamapy.graph.op import registry
from tests.ops.case import Case, check, run_case
from tests.ops.cases import CASES


def test_every_op_that_computes_has_cases():
    missing = {name for name, op in registry().items() if op.computes} - {c.op for c in CASES}
    assert not missing


def test_no_case_is_there_twice():
    twice = [name for name, n in Counter(map(str, CASES)).items() if n > 1]
    assert not twice


@pytest.fixture(scope="module")
def reference() -> Backend:
    return Reference()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference(case: Case, reference: Backend) -> None:
    check(case, *run_case(case, reference))
