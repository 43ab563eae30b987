"""Megabytes a second of tokenizing, ours and the peer's in turns: medians and ratios.

Three texts of about the same size: English prose (the manual that Python carries), code (Python's
library), and Chinese (drawn from common characters: no text of that size comes with Python, and
random words are the harder case, as none is met again). Vocabularies are loaded before.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peer

from llamapy.gguf.split import open_split
from llamapy.tokenizers.tokenizer import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("vocabularies", nargs="+", type=Path, help="GGUF files")
    parser.add_argument("-r", type=int, default=3, help="runs of each, after one to warm up")
    parser.add_argument("--size", type=int, default=2_000_000, help="bytes of each text")


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    made = texts(arguments.size)
    print(f"{'vocabulary':28} {'text':>8} {'ours MB/s':>10} {'peer MB/s':>10} {'ratio':>7}  ids")
    rows = []
    for path in arguments.vocabularies:
        with open_split(path) as file:
            ours = load(file.metadata)
        with peer.connect().open(path, vocab_only=True) as model:
            for name, text in made.items():
                row = compare(ours.encode, model.tokenize, text, arguments.r)
                rows.append({"vocabulary": path.name, "text": name, **row})
                same = "equal" if row["equal"] else "differ"
                figures = f"{row['ours']:10.2f} {row['peer']:10.2f} {row['ratio']:7.2f}"
                print(f"{path.stem[-28:]:28} {name:>8} {figures}  {same}", flush=True)
    return rows


def compare(ours: Any, theirs: Any, text: bytes, reps: int) -> dict[str, Any]:
    """Medians of megabytes a second, and whether the ids are the same."""
    calls: dict[str, Callable[[], list[int]]] = {
        "ours": lambda: list(ours(text, add_special=True, parse_special=True)),
        "peer": lambda: theirs(text, add_special=True, parse_special=True),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    ids: dict[str, list[int]] = {}
    for repetition in range(reps + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            ids[name] = call()
            if repetition:
                samples[name].append(len(text) / 1e6 / (time.perf_counter() - start))
    found = {name: statistics.median(speeds) for name, speeds in samples.items()}
    ratio = found["ours"] / found["peer"]
    return {**found, "ratio": ratio, "equal": ids["ours"] == ids["peer"], "samples": samples}


def texts(size: int) -> dict[str, bytes]:
    """{name: about `size` bytes of UTF-8}."""
    library = Path(sysconfig.get_paths()["stdlib"])
    prose = (library / "pydoc_data" / "topics.py").read_text(encoding="utf-8").replace("\\n", "\n")
    code = ""
    for path in sorted(library.glob("*.py")):
        if len(code) > size:
            break
        code += path.read_text(encoding="utf-8")
    return {
        "english": (prose * (size // len(prose) + 1)).encode()[:size],
        "code": code.encode()[:size],
        "chinese": chinese(size // 3).encode(),
    }


def chinese(n: int) -> str:
    """n characters: words of one to four of the first 3,000 of the block, rarer ones rarer, with
    marks between."""
    draw = random.Random(0)
    out: list[str] = []
    while len(out) < n:
        for _ in range(draw.randint(4, 14)):
            out += [chr(0x4E00 + int(3000 * draw.random() ** 3)) for _ in range(draw.randint(1, 4))]
        out.append(draw.choice("，。；！？"))
    return "".join(out[:n])
