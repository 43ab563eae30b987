"""Lazy compilation: no numba before the first call, and a cache that sees edits in other files."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from llamapy.native import compiled

HELPER = """
from llamapy.native import compiled
@compiled
def helper(x):
    return x + {}
"""
CALLER = """
from helper import helper
from llamapy.native import compiled
@compiled
def caller(x):
    return 10 * helper(x)
if __name__ == "__main__":
    import sys
    from llamapy.native import jit
    print(caller(1), jit.n_built, "numba" in sys.modules)
"""


def run(folder: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "LLAMAPY_KERNEL_CACHE": str(folder / "cache"), **more},
        capture_output=True,
        text=True,
        check=True,
    )


def test_naming_compiled_functions_loads_no_numba(tmp_path: Path) -> None:
    code = "import sys, llamapy.native, llamapy.quants.q4_k; print('numba' in sys.modules)"
    assert run(tmp_path, "-c", code).stdout.strip() == "False"


EDITED = """
import os, pathlib, time
from caller import caller
helper = pathlib.Path("helper.py")
helper.write_text(helper.read_text().replace("x + 1", "x + 2"))
os.utime(helper, (time.time() + 5, time.time() + 5))
print(caller(1))
"""


def test_an_edit_while_a_process_runs_does_not_keep_its_old_code(tmp_path: Path) -> None:
    """It compiles what it imported; the next process must not take that for the edited file's."""
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert run(tmp_path, "-c", EDITED).stdout.split() == ["20"]
    os.utime(tmp_path / "helper.py", (0, 0))
    code = "from caller import caller; print(caller(1))"
    assert run(tmp_path, "-c", code).stdout.split() == ["30"]


def test_an_edit_in_another_file_is_seen_and_nothing_else_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "1", "True"]
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "0", "False"]  # from the disk
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    assert run(tmp_path, "caller.py").stdout.split() == ["30", "1", "True"]


@pytest.mark.parametrize("harm", ["cut", "changed", "empty"])
def test_damaged_machine_code_is_made_anew(tmp_path: Path, harm: str) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    run(tmp_path, "caller.py")
    (file,) = (tmp_path / "cache").glob("*.o")
    data = bytearray(file.read_bytes())
    data[-200] ^= 1
    file.write_bytes({"cut": data[:-100], "changed": data, "empty": b""}[harm])
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "1", "True"]
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "0", "False"]


def test_processes_that_start_at_once_share_one_folder(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: run(tmp_path, "caller.py"), range(4)))
    assert [one.stdout.split()[0] for one in done] == ["20"] * 4
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_numbers_go_in_and_come_out() -> None:
    assert (doubled(3), doubled(1.5), doubled(np.int64(-4))) == (6, 3.0, -8)
    assert doubled(np.float32(0.1)) == float(np.float32(0.2))  # not 0.2: float32 stays float32
    assert is_large(2**40) == 1 and is_large(0) == 0
    with pytest.raises(TypeError, match="pass the address of an array"):
        doubled(np.zeros(3))
    with pytest.raises(TypeError, match="no number"):
        pair(1)


@compiled
def doubled(x):  # type: ignore[no-untyped-def]
    return x + x


@compiled
def is_large(x):  # type: ignore[no-untyped-def]
    return x > 2**39


@compiled
def pair(x):  # type: ignore[no-untyped-def]
    return x, x


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "caller.py", LLAMAPY_KERNEL_CACHE=str(tmp_path / "file" / "inside"))
    assert done.stdout.split()[0] == "20"
    assert "compiled anew" in done.stderr


class Group(NamedTuple):
    first: int
    second: int


def test_a_group_of_integers_goes_in() -> None:
    assert difference(Group(10, 3), 5) == 12


@compiled
def difference(group, more):  # type: ignore[no-untyped-def]
    return group.first - group.second + more
