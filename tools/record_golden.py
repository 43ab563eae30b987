"""Record golden text: 200 greedy tokens of SmolLM2 for three prompts, at every SIMD level of this
machine.

    python tools/record_golden.py            writes fixtures/golden/smollm2.json (levels recorded
    elsewhere are kept)
    python tools/record_golden.py --level    prints the tokens of one level (chosen by LLAMAPY_ISA)
    as JSON

Greedy text depends on the last bits of sums, so each level has its own; threads must not matter.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE.parent / "fixtures" / "golden" / "smollm2.json"
PROMPTS = (
    "The history of bread begins",
    "def quicksort(values):\n",
    "Once upon a time in a village by the sea,",
)
N_TOKENS = 200


def greedy(path: Path, threads: int) -> list[list[int]]:
    """The ids that follow each prompt."""
    import numpy as np

    from llamapy.runtime.context import Context
    from llamapy.runtime.model import Model

    model = Model(path)
    context = Context(model, n_ctx=512, threads=threads)
    found = []
    for prompt in PROMPTS:
        context.memory.clear()
        logits = context.decode(model.tokenizer.encode(prompt))
        ids: list[int] = []
        for _ in range(N_TOKENS):
            ids.append(int(np.argmax(logits[-1])))
            logits = context.decode([ids[-1]])
        found.append(ids)
    return found


def at_level(level: str, threads: int) -> list[list[int]]:
    """The same in a process that is forced to one SIMD level."""
    command = [sys.executable, __file__, "--level", "--threads", str(threads)]
    got = subprocess.run(
        command,
        env={**os.environ, "LLAMAPY_ISA": level},
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(got.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--level", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    from llamapy.runtime.sources import default_model

    path = default_model()
    if arguments.level:
        print(json.dumps(greedy(path, arguments.threads)))
        return
    from llamapy.native.levels import available
    from llamapy.runtime.model import Model

    tokenizer = Model(path).tokenizer
    golden = json.loads(OUT.read_text()) if OUT.exists() else {}
    for level in available():
        ids = at_level(level, arguments.threads)
        texts = [tokenizer.decode(i).decode(errors="replace") for i in ids]
        golden[level] = [{"prompt": p, "ids": i, "text": t} for p, i, t in zip(PROMPTS, ids, texts)]
        print(f"{level}: {texts[0][:60]!r} ...", file=sys.stderr)
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(golden, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
