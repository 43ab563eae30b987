"""What a whole run takes in memory, against what it says it takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

# The greatest resident size of `llamapy` with these arguments, in KiB, as the kernel counts it.
MEASURED = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "llamapy", *sys.argv[1:]], capture_output=True)
sys.stderr.buffer.write(done.stderr)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""
MIB = 2**20
SPARE = 250 * MIB  # Python, numpy, LLVM, machine code, the vocabulary


@pytest.mark.model
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss has another unit elsewhere")
def test_resident_memory_is_what_is_said_and_250_mb(smollm2: Path) -> None:
    """File + cache + compute buffers + 250 MB: weights that are read into memory must not stay
    mapped besides, and compiling happens in other processes or is given back."""
    run = ["run", "-m", str(smollm2), "-p", "Hi", "-n", "1", "-c", "512", "--temp", "0"]
    call = [sys.executable, "-c", MEASURED, *run]
    for _ in range(2):  # the first may compile, which is not the run
        done = subprocess.run(call, capture_output=True, text=True, check=True)
    said = re.search(r"weights (\S+) MiB, cache (\S+) MiB, compute buffers (\S+) MiB", done.stderr)
    assert said is not None, done.stderr
    weights, cache, compute = (float(size) * MIB for size in said.groups())
    assert 0.9 * smollm2.stat().st_size < weights < 1.02 * smollm2.stat().st_size
    resident = 1024 * int(done.stdout)
    assert weights < resident < smollm2.stat().st_size + cache + compute + SPARE
