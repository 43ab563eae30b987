"""A light start: the command line loads no compiler and no runtime until a command needs them."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

HEAVY = {"numba", "llvmlite", "llamapy.runtime", "llamapy.archs", "jinja2"}
RUN = """
import json, os, sys
from llamapy.cli.main import run
code = run(sys.argv[1:])
sys.stdout.flush()
json.dump({"code": code, "modules": list(sys.modules)}, open(os.environ["REPORT"], "w"))
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A GGUF file with one tensor, from the official writer."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", np.ones((4, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def loaded(arguments: list[str], folder: Path) -> set[str]:
    """The modules that `llamapy ARGUMENTS` has loaded at its end."""
    report = folder / "report.json"
    environment = os.environ | {"REPORT": str(report)}
    subprocess.run(
        [sys.executable, "-c", RUN, *arguments], env=environment, check=True, capture_output=True
    )
    found = json.loads(report.read_text())
    assert found["code"] == 0
    return set(found["modules"])


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["dump", "--help"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    modules = loaded(arguments, tmp_path)
    assert "typer" in modules
    assert modules & (HEAVY | {"numpy"}) == set()


def test_dump_loads_neither_compiler_nor_runtime(tiny: Path, tmp_path: Path) -> None:
    modules = loaded(["dump", str(tiny)], tmp_path)
    assert "llamapy.gguf" in modules
    assert modules & HEAVY == set()


def test_only_the_named_command_is_imported(tiny: Path, tmp_path: Path) -> None:
    modules = loaded(["dump", str(tiny)], tmp_path)
    commands = {m for m in modules if m.startswith("llamapy.cli.commands.")}
    assert commands == {"llamapy.cli.commands.dump"}
    assert not any(m.startswith("llamapy.cli.commands.") for m in loaded(["--help"], tmp_path))


def test_the_package_itself_loads_nothing_heavy() -> None:
    code = "import sys, llamapy; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert set(done.stdout.split()) & (HEAVY | {"numpy", "rich", "typer"}) == set()


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_start_takes_under_400_ms_of_processor(argument: str) -> None:
    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "llamapy", argument], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(3)) < 0.4


@pytest.mark.model
def test_a_warm_run_needs_no_compiler(smollm2: Path, tmp_path: Path) -> None:
    arguments = ["run", "-m", str(smollm2), "-p", "Why is the sky blue?", "-n", "2"]
    loaded(arguments, tmp_path)  # compiles what is missing
    modules = loaded(arguments, tmp_path)
    assert "llvmlite" in modules
    assert modules & {"numba", "rich", "importlib.metadata"} == set()
