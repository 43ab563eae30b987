"""llamapy quantize under limits: a disk that takes no more, and little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import quantize_models as models

from llamapy.gguf.writer import GGUFWriter


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


LIMITED = """
import resource, sys
from llamapy.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
main(["quantize", "in.gguf", "out.gguf", "f16"])
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_a_disk_that_takes_no_more() -> None:
    models.write("llama", Path("in.gguf"))
    child = [sys.executable, "-c", LIMITED]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "out.gguf: cannot be written" in done.stderr and "needs" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert os.listdir() == ["in.gguf"]


N_ROWS, N_COLUMNS, N_TENSORS = 4096, 1024, 10

BOUNDED = """
import resource, sys, threading
import numpy as np
from llamapy.cli.main import run
from llamapy.native import memory

threading.stack_size(1 << 20)  # one thread more at a time, or less, must not decide
largest, *kinds = int(sys.argv[1]), *sys.argv[2:]
for kind in kinds:  # compiled code is loaded, threads have been started once
    assert run(["quantize", "small.gguf", "out.gguf", kind, "--force", "-t", "2"]) == 0
now = next(line for line in open("/proc/self/status") if line.startswith("VmData"))
limit = int(now.split()[1]) * 1024 + 3 * largest
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(4 * largest, np.uint8)
except MemoryError:
    print("bounded")
for kind in kinds:
    print(run(["quantize", "large.gguf", "out.gguf", kind, "--force", "-t", "2"]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_memory_beyond_the_program_is_three_float32_tensors_at_most() -> None:
    """Under that limit; the whole model would be more than three times too large."""
    rows = (np.random.RandomState(0).standard_normal((64, N_COLUMNS)) * 0.05).astype("<f2")

    def write(name: str, n_rows: int) -> None:
        writer = GGUFWriter(name)
        writer.add("general.architecture", "llama")
        for i in range(N_TENSORS):
            writer.add_tensor(f"blk.{i}.ffn_up.weight", (N_COLUMNS, n_rows), 1, n_rows * 2048)
        several = [(rows.tobytes() for _ in range(n_rows // 64)) for _ in range(N_TENSORS)]
        writer.write(several)

    write("small.gguf", 64)
    write("large.gguf", N_ROWS)
    kinds = ["q8_0", "q4_k_m", "q6_k", "iq4_xs", "bf16"]
    child = [sys.executable, "-c", BOUNDED, str(4 * N_ROWS * N_COLUMNS), *kinds]
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(child, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    results = [line for line in done.stdout.splitlines() if line in ("0", "1", "bounded")]
    assert results == ["bounded"] + ["0"] * len(kinds), done.stderr
