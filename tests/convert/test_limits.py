"""The command as a process: in little memory, and as a person sees it."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.convert import folders

LLAMAPY = [sys.executable, "-m", "llamapy", "convert"]
MB = 1 << 20


def run(*arguments: object, limit: int = 0) -> subprocess.CompletedProcess[str]:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    return subprocess.run(
        [*LLAMAPY, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        preexec_fn=limited if limit else None,
    )


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
def test_memory(llama: Path) -> None:
    """Under a limit of three times the largest tensor and 300 MB, address space included."""
    largest = folders.blow_up(llama)
    out = llama.parent / "out.gguf"
    for more in ([], ["--split-max-size", "50M"]):
        done = run(llama, "-o", out, "--outtype", "f16", *more, limit=3 * largest + 300 * MB)
        assert done.returncode == 0, done.stderr
        written = sum(Path(path).stat().st_size for path in done.stdout.split())
        assert written > 10 * largest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize("kind", ["q8_0", "q4_k_m"])
def test_memory_of_quantized_types(kind: str, llama: Path) -> None:
    """What is in memory at most; the compiler's library alone has more addresses than the limit."""
    largest = folders.blow_up(llama)
    out = llama.parent / "out.gguf"
    code = "from llamapy.cli.main import run; import sys; code = run(sys.argv[1:]); "
    code += "print([s for s in open('/proc/self/status') if 'VmHWM' in s][0].split()[1])"
    command = [sys.executable, "-c", code, "convert", str(llama), "-o", str(out)]
    done = subprocess.run([*command, "--outtype", kind], capture_output=True, text=True)
    assert done.returncode == 0 and out.is_file(), done.stderr
    peak = 1024 * int(done.stdout.split()[-1])
    assert peak < 3 * largest + 300 * MB


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize("megabytes", [100, 300])
def test_too_little_memory(megabytes: int, llama: Path) -> None:
    """One line, and nothing is left: be it numpy, a thread or the compiler that finds no room."""
    folders.blow_up(llama)
    done = run(llama, "-o", llama.parent / "out.gguf", "--outtype", "q8_0", limit=megabytes * MB)
    assert done.returncode == 1
    assert done.stderr.startswith("llamapy: not enough memory"), done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert os.listdir(llama.parent) == ["llama"]


def test_as_a_person_sees_it(llama: Path) -> None:
    out = llama.parent / "out.gguf"
    planned = run(llama, "-o", out, "--dry-run", "--json")
    report = json.loads(planned.stdout)
    assert (report["architecture"], report["type"], report["written"]) == ("llama", "BF16", [])
    assert not out.exists()
    done = run(llama, "-o", out)
    assert (done.returncode, done.stdout.strip()) == (0, str(out))
    assert sum(t["bytes"] for t in report["tensors"]) < out.stat().st_size
    again = run(llama, "-o", out)
    assert again.returncode == 1 and "exists" in again.stderr
    (llama / "model.safetensors").write_bytes(b"x")
    broken = run(llama, "-o", out, "--force")
    assert broken.returncode == 1
    assert len(broken.stderr.strip().splitlines()) == 1 and "Traceback" not in broken.stderr
