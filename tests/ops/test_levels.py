"""A sample of the op cases at the SIMD levels that are not this machine's best, each in a process
of its own.

The best level runs all cases (test_ops.py). The levels of other machines run emulated: the same
kernels, with their
special instructions replaced by plain vector operations of the same meaning.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llamapy.native.levels import available

OTHERS = [
    *available()[1:],
    *(f"{level}+emulate" for level in ("amx", "avx512", "neon") if level not in available()),
]
SAMPLE = """
import sys
from llamapy.backend.cpu.device import CPU
from llamapy.native.levels import level
from tests.ops.case import check, run_case
from tests.ops.cases import CASES

WANTED = {"mul_mat", "mul_mat_id", "get_rows", "flash_attn", "rms_norm", "soft_max", "rope",
"swiglu", "add", "hadamard"}
TYPES = ("q4_1", "q4_K", "q6_K", "q8_0", "f16", "f32")
seen, cpu = set(), CPU(threads=2)
for case in CASES:
    kinds = tuple((s.kind, s.fill) for s in case.src if s is not None)
    kind = case.op, kinds, case.op.startswith("mul_mat") and case.src[1].ne[1] > 8
    if case.op not in WANTED or kinds[0][0] not in TYPES or kind in seen:
        continue
    seen.add(kind)
    check(case, *run_case(case, cpu))
print(level(), len(seen))
"""


@pytest.mark.parametrize("level", OTHERS)
def test_cases_at_level(level: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE],
        env={**os.environ, "LLAMAPY_ISA": level},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    name, count = done.stdout.split()
    assert name == level.partition("+")[0] and int(count) > 20
