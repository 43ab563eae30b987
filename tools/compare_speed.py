"""Tokens a second of prefill and decode, ours and the peer's in turns: medians and ratios."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fetch_models
import numpy as np
import peer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", type=Path, help="GGUF files (default: SmolLM2 and Gemma 3 270M)"
    )
    parser.add_argument("-p", type=int, default=512, help="tokens of prefill")
    parser.add_argument("-n", type=int, default=64, help="tokens of decode")
    parser.add_argument("-d", type=int, default=0, help="tokens in the context before")
    parser.add_argument("-t", type=int, default=2, help="threads")
    parser.add_argument("-r", type=int, default=5, help="runs of each, after one to warm up")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    paths = arguments.models or [fetch_models.smollm2(), fetch_models.gemma3()]
    print(f"{'model':26} {'test':>10} {'ours t/s':>10} {'peer t/s':>10} {'ratio':>7}")
    rows = []
    for path in paths:
        rows.append(measure(path, arguments))
        show(rows[-1], arguments.d)
    return {
        "machine": platform.processor() or platform.machine(),
        "date": time.strftime("%F %T"),
        "rows": rows,
    }


def show(row: dict[str, Any], depth: int) -> None:
    for test in ("pp", "tg"):
        ours, theirs = row["ours"][test], row["peer"][test]
        name = f"{test}{row['n'][test]}" + (f"@{depth}" if depth else "")
        figures = f"{ours:10.1f} {theirs:10.1f} {ours / theirs:7.2f}"
        print(f"{row['model'][:26]:26} {name:>10} {figures}", flush=True)


def measure(path: Path, a: argparse.Namespace) -> dict[str, Any]:
    n_ctx = max(a.d + a.p, a.d + a.n) + 8
    ours = our_engine(path, n_ctx, a.t)
    with peer.connect().open(path) as model, model.context(n_ctx=n_ctx, threads=a.t) as context:
        rng = np.random.default_rng(0)
        tokens = [int(t) for t in rng.integers(0, model.n_vocab, n_ctx)]
        theirs = (context.clear, lambda part, start: context.prefill(part, start))
        engines = {"ours": ours, "peer": theirs}
        samples: dict[str, dict[str, list[float]]] = {
            name: {"pp": [], "tg": []} for name in engines
        }
        for repetition in range(a.r + 1):
            for name, (clear, decode) in engines.items():
                found = once(clear, decode, tokens, a)
                if repetition:
                    for test, rate in found.items():
                        samples[name][test].append(rate)
    medians = {
        name: {t: statistics.median(v) for t, v in tests.items()} for name, tests in samples.items()
    }
    return {"model": path.name, "n": {"pp": a.p, "tg": a.n}, **medians, "samples": samples}


def once(
    clear: Callable[[], None], decode: Callable[[list[int], int], Any], tokens: list[int], a: Any
) -> dict[str, float]:
    """One prefill and one decode, each after `-d` tokens."""
    rates = {}
    for test, n in (("pp", a.p), ("tg", a.n)):
        clear()
        if a.d:
            decode(tokens[: a.d], 0)
        start = time.perf_counter()
        if test == "pp":
            decode(tokens[a.d : a.d + n], a.d)
        else:
            for i in range(n):
                decode(tokens[a.d + i : a.d + i + 1], a.d + i)
        rates[test] = n / (time.perf_counter() - start)
    return rates


def our_engine(
    path: Path, n_ctx: int, threads: int
) -> tuple[Callable[[], None], Callable[[list[int], int], Any]]:
    from llamapy.runtime.context import Context
    from llamapy.runtime.model import Model

    context = Context(Model(path), n_ctx=n_ctx, threads=threads)
    return context.memory.clear, lambda part, start: context.decode(part)
