"""Speed and bytes of `quantize` beside llama-quantize: the same file, threads and run, in turns.

Each side's first run is not counted. The clock of both is around the call that reads, quantizes and
writes; llamapy's includes that the output is safe on the disk, llama.cpp's does not.
"""

from __future__ import annotations

import argparse
import filecmp
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import peer_tasks
from peer import Peer, connect

from llamapy.tasks import quantize
from llamapy.tasks.file_types import FILE_TYPES
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.inspect import open_gguf
from llamapy.tasks.quantize_plan import Choices

DEFAULT_TYPES = "Q4_K_M,Q6_K,Q8_0,IQ4_XS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this comparison."""
    parser.add_argument("model", type=Path, help="GGUF file with weights in F16, BF16 or F32")
    parser.add_argument("--types", default=DEFAULT_TYPES, help="file types, with commas, or `all`")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-r", "--reps", type=int, default=3, help="counted runs of each side")
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")
    parser.add_argument(
        "--importance", action="store_true", help="with made-up importances, which some types need"
    )


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare all types; a row each."""
    peer = connect()
    names = [one.name for one in FILE_TYPES] if args.types == "all" else args.types.split(",")
    weights = made_up(args.model) if args.importance else {}
    print(f"{'type':10} {'llamapy':>9} {'peer':>9} {'ratio':>7}  bytes", flush=True)
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in names:
            row = compare(peer, args, name.upper(), weights, Path(folder))
            rows.append(row)
            same = "equal" if row["equal"] else "differ"
            print(
                f"{row['type']:10} {row['llamapy_s']:8.2f}s {row['peer_s']:8.2f}s"
                f" {row['ratio']:7.2f}  {same}",
                flush=True,
            )
    return rows


def compare(
    peer: Peer, args: argparse.Namespace, name: str, weights: dict[str, Any], folder: Path
) -> dict[str, Any]:
    """One type: medians of both sides, and whether the files are equal."""
    ours, theirs = folder / "llamapy.gguf", folder / "peer.gguf"
    imatrix = imatrix_of(weights) if weights else None
    options = quantize.Options(
        choices=Choices(allow_requantize=True),
        imatrix=imatrix,
        threads=args.threads,
    )
    extra: dict[str, Any] = {}
    if weights:
        extra = {
            "imatrix": weights,
            "overrides": {"quantize.imatrix.entries_count": len(weights)},
        }

    def llamapy() -> float:
        ours.unlink(missing_ok=True)  # as for the peer: freeing an old file is no part of it
        start = time.perf_counter()
        with quantize.prepare(args.model, name, options) as job:
            quantize.run(job, ours)
        return time.perf_counter() - start

    def reference() -> float:
        theirs.unlink(missing_ok=True)
        return peer_tasks.quantize(
            peer, args.model, theirs, name, threads=args.threads, allow_requantize=True, **extra
        )

    samples: dict[str, list[float]] = {"llamapy": [], "peer": []}
    for rep in range(args.reps + 1):
        mine, other = llamapy(), reference()
        if rep:
            samples["llamapy"].append(mine)
            samples["peer"].append(other)
    medians = {side: statistics.median(seconds) for side, seconds in samples.items()}
    return {
        "type": name,
        "llamapy_s": medians["llamapy"],
        "peer_s": medians["peer"],
        "ratio": medians["peer"] / medians["llamapy"],
        "equal": filecmp.cmp(ours, theirs, shallow=False),
        "samples": samples,
        "threads": args.threads,
    }


def made_up(model: Path) -> dict[str, Any]:
    """Importances for every matrix of a model, drawn at random."""
    rng = np.random.RandomState(0)
    with open_gguf(model) as file:
        return {
            info.name: (
                rng.standard_normal(info.ne[0] * int(np.prod(info.ne[2:]))) ** 2 + 0.01
            ).astype(np.float32)
            for info in file.tensors
            if len(info.ne) > 1
        }


def imatrix_of(weights: dict[str, Any]) -> Imatrix:
    """The same as an importance matrix of one token."""
    entries = {n: Entry(v.reshape(1, -1), np.ones(1, np.int64)) for n, v in weights.items()}
    return Imatrix(entries, chunk_size=1)
