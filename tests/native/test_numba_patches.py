"""What is changed in numba while kernels are built: it is there, it is taken back, and what runs is
right."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core import codegen, cpu, event
from numba.core.types import functions

from llamapy.native import ByType, compiled, numba_patches

PLACES = [
    (codegen.JITCodeLibrary, "_finalize_specific"),
    (codegen.JITCPUCodegen, "_add_module"),
    (codegen.JITCPUCodegen, "set_env"),
    (codegen.CPUCodeLibrary, "_optimize_final_module"),
    (cpu.CPUContext, "create_cpython_wrapper"),
    (cpu.CPUContext, "create_cfunc_wrapper"),
    (cpu.CPUContext, "declare_function"),
    (event, "start_event"),
    (event, "end_event"),
    (functions.BaseFunction, "get_call_type"),
]


def test_every_change_finds_its_place_and_is_taken_back() -> None:
    """A name that a new numba no longer has would only make it slower, unseen."""
    before = [getattr(owner, name) for owner, name in PLACES]
    with numba_patches.for_kernels():
        assert not gc.isenabled()
        for (owner, name), was in zip(PLACES, before):
            assert getattr(owner, name) is not was, name
    assert gc.isenabled()
    assert [getattr(owner, name) for owner, name in PLACES] == before
    assert "declare_function" not in vars(cpu.CPUContext)  # inherited, as it was


def test_numba_itself_works_as_ever_after_kernels() -> None:
    """What our functions share with a user's own (division, tanh) was made for ours only."""

    @compiled
    def ours(x: int, y: int) -> float:
        return float(x // y + x % y) + np.tanh(float(x))

    def theirs(a: np.ndarray[Any, Any], n: int) -> Any:
        total = a.sum()
        for i in range(1, n):
            total += i // 3 * max(i % 5, 2) + np.tanh(a[i])
        return total

    assert ours(7, 2) == 4 + np.tanh(7.0)
    numbers = np.arange(20.0) / 10
    assert njit(theirs)(numbers, 20) == pytest.approx(theirs(numbers, 20), rel=1e-12)


RUN = """
import sys
from llamapy.backend.cpu.sync import walk
from llamapy.native import crew, jit
from llamapy.runtime.memory import masks
print(crew.load([(walk, (int,) * 5)], 2), jit.n_built, "numba" in sys.modules)
print(masks.fill.load_kept(*(int,) * 11))
"""


def test_what_every_run_needs_is_compiled_with_the_rest(tmp_path: Path) -> None:
    env = {**os.environ, "LLAMAPY_KERNEL_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", RUN], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "0", "False", "True"], done.stderr


def double(x):  # type: ignore[no-untyped-def]
    return 2 * x


def test_by_type_outside_compiled_code_is_refused() -> None:
    with pytest.raises(TypeError, match="twice is for compiled code"):
        ByType("twice", lambda label: double, 1)(3)
