"""Compiling in other processes: what they made is found, and this process stays light."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from llamapy.native import crew

BUILD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
import numpy as np
from llamapy.backend.cpu.kernels.norms import norms
from llamapy.backend.cpu.sync import block_of, walk
from llamapy.native import crew
from llamapy.quants.q8_0 import encode

wanted = [(walk, (int,) * 5), (encode, (int,) * 6), (norms, ("", ""))]
if "broken" in sys.argv:
    wanted.append((block_of, (int,) * 3))  # gives a pair: no number
print("ready", flush=True)
crew.build(wanted, 2, lambda name, done: print(name, done, flush=True))
print(all(what.load_kept(*types) for what, types in wanted[:3]), "numba" in sys.modules)
if "broken" in sys.argv:
    block_of.load(int, int, int)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", BUILD, *arguments],
        env={**os.environ, "LLAMAPY_KERNEL_CACHE": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_build_and_this_one_loads_no_compiler(tmp_path: Path) -> None:
    out, err = start(tmp_path).communicate()
    lines = out.splitlines()
    assert sorted(line.split()[0] for line in lines[1:4]) == ["encode", "norms", "walk"]
    assert [line.split()[-1] for line in lines[1:4]] == ["1", "2", "3"]
    assert lines[4] == "True False", err
    assert len(list(tmp_path.glob("*.o"))) == 3


def test_processes_that_ended_are_replaced() -> None:
    crew._all.append(crew._Worker())
    ended = crew._all[-1]
    assert ended.process.stdin is not None
    ended.process.stdin.close()
    ended.process.wait(30)
    fresh = crew._workers(1)
    assert ended not in fresh and fresh[0].process.poll() is None
    crew.close()
    assert fresh[0].process.returncode is not None and not crew._all


def test_what_a_process_cannot_do_fails_where_it_is_needed(tmp_path: Path) -> None:
    out, err = start(tmp_path, "broken").communicate()
    assert out.splitlines()[-1] == "True False"
    assert "block_of gives back something that is no number" in err


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals")
def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    process = start(tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    time.sleep(0.3)
    children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode != 0
    end = time.monotonic() + 10
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < end, "a process is left"
        time.sleep(0.05)


def _children(pid: int) -> list[str]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return path.read_text().split() if path.exists() else []
