"""Lazy compilation: no numba before the first call, and a cache that sees edits in other files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
    print(caller(1), len(caller.dispatcher.stats.cache_hits))
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


def test_an_edit_in_another_file_is_seen_and_nothing_else_is_compiled_anew(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "0"]
    assert run(tmp_path, "caller.py").stdout.split() == ["20", "1"]  # from the cache
    (tmp_path / "helper.py").write_text(HELPER.format(2))
    assert run(tmp_path, "caller.py").stdout.split() == ["30", "0"]


def test_a_cache_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "caller.py").write_text(CALLER)
    (tmp_path / "helper.py").write_text(HELPER.format(1))
    (tmp_path / "file").write_text("")
    done = run(tmp_path, "caller.py", LLAMAPY_KERNEL_CACHE=str(tmp_path / "file" / "inside"))
    assert done.stdout.split()[0] == "20"
    assert "compiled anew" in done.stderr
