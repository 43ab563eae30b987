"""llamapy warmup: what it compiled is all that a run needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

MODEL = Path(__file__).parents[2] / "fixtures" / "tiny" / "llama.gguf"
RUN = """
import sys
from llamapy import Model
from llamapy.native import jit
text = Model(sys.argv[1]).generate("a" * 40, n_predict=4).text()
print(jit.n_built, "numba" in sys.modules)
"""


def call(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "LLAMAPY_KERNEL_CACHE": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_after_it_a_run_compiles_nothing(tmp_path: Path) -> None:
    warmup = ("-m", "llamapy", "warmup", "-m", str(MODEL), "--json")
    first, second = (json.loads(call(tmp_path, *warmup)) for _ in range(2))
    assert first["compiled"] == first["kernels"] > 8
    assert second == {"kernels": first["kernels"], "compiled": 0}
    assert call(tmp_path, "-c", RUN, str(MODEL)).split() == ["0", "False"]


def test_a_model_or_all(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "llamapy", "warmup", "--all", "-m", str(MODEL)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "exclude each other" in done.stderr
