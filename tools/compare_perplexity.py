"""Perplexity of a text, ours and the peer's in turns: seconds, ratios, figures; and an imatrix."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fetch_models
import peer
import peer_tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", type=Path, help="GGUF files (default: SmolLM2 and Gemma 3 270M)"
    )
    parser.add_argument("--text", type=Path, help="a text (default: Python's own manual)")
    parser.add_argument("--chunks", type=int, default=20)
    parser.add_argument("-c", type=int, default=512, help="tokens a chunk")
    parser.add_argument("-t", type=int, default=2, help="threads")
    parser.add_argument("-r", type=int, default=3, help="runs of each, after one chunk to warm up")
    parser.add_argument("--reference", action="store_true", help="numpy's float32 figure, too")
    parser.add_argument("--rounded", action="store_true", help="ours with --activations q8, too")


def english() -> str:
    """Prose that every Python carries: its manual's topics."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def run(a: argparse.Namespace) -> list[dict[str, Any]]:
    text = a.text.read_text() if a.text else english()
    paths = a.models or [fetch_models.smollm2(), fetch_models.gemma3()]
    found = [measure(path, text, a) for path in paths]
    print(f"{'model':26} {'chunks':>6} {'ours s':>8} {'peer s':>8} {'ratio':>6} {'imatrix':>8}")
    for row in found:
        s = row["seconds"]
        times = f"{s['ours']:8.2f} {s['peer']:8.2f} {row['ratio']:6.2f} {row['imatrix']:7.2f}x"
        print(f"{row['model'][:26]:26} {row['n_chunks']:6} {times}")
        ppl = ", ".join(f"{who} {value:.4f}" for who, value in row["ppl"].items())
        off = ", ".join(
            f"{who} {row['ppl'][who] / row['ppl']['peer'] - 1:+.4%}" for who in row["ppl"]
        )
        print(f"{'':26} PPL {ppl}; to the peer's: {off}")
    return found


def measure(path: Path, text: str, a: argparse.Namespace) -> dict[str, Any]:
    """Seconds with making the context; the peer's without scoring, which is its driver's and slow.

    So the peer is given a little too much.
    """
    from llamapy.runtime.model import Model
    from llamapy.tasks.collect import collect
    from llamapy.tasks.perplexity import perplexity, tokens_of

    mine = Model(path)
    ids = tokens_of(mine, text)[: a.chunks * a.c]
    sizes: dict[str, Any] = {"n_ctx": a.c, "threads": a.t}
    ppl: dict[str, float] = {}

    def ours(ids: Any) -> float:
        start = time.perf_counter()
        ppl["ours"] = perplexity(mine, ids, **sizes).ppl
        return time.perf_counter() - start

    def imatrix(ids: Any) -> float:
        start = time.perf_counter()
        collect(mine, ids, **sizes)
        return time.perf_counter() - start

    with peer.connect().open(path) as theirs_model:

        def theirs(ids: Any) -> float:
            ppl["peer"], seconds = their_perplexity(theirs_model, text, ids, a)
            return seconds

        works: dict[str, Callable[[Any], float]] = {
            "ours": ours,
            "imatrix": imatrix,
            "peer": theirs,
        }
        for work in works.values():
            work(ids[: 2 * a.c])
        samples: dict[str, list[float]] = {name: [] for name in works}
        for turn in range(a.r):
            names = list(works)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                samples[name].append(works[name](ids))
    if a.reference:
        ppl["reference"] = perplexity(
            mine, ids, n_ctx=a.c, backend="reference", type_k="f32", type_v="f32"
        ).ppl
    if a.rounded:
        ppl["rounded"] = perplexity(mine, ids, activations="q8", **sizes).ppl
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "model": path.name,
        "n_chunks": len(ids) // a.c,
        "ppl": ppl,
        "off": ppl["ours"] / ppl["peer"] - 1,
        "seconds": medians,
        "ratio": medians["peer"] / medians["ours"],
        "imatrix": medians["imatrix"] / medians["ours"],
        "samples": samples,
    }


def their_perplexity(
    model: peer.Model, text: str, ids: Any, a: argparse.Namespace
) -> tuple[float, float]:
    """The peer's perplexity over the same chunks, and the seconds without its driver's scoring."""
    scoring = 0.0
    plain = peer_tasks._nll

    def timed(logits: Any, want: Any) -> Any:
        nonlocal scoring
        start = time.perf_counter()
        found = plain(logits, want)
        scoring += time.perf_counter() - start
        return found

    peer_tasks._nll = timed
    try:
        found = peer_tasks.perplexity(
            model, text, a.c, chunks=len(ids) // a.c, threads=a.t, n_batch=2048
        )
    finally:
        peer_tasks._nll = plain
    return found.ppl, found.seconds - scoring
