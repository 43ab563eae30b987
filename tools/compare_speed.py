"""Tokens a second of prefill and decode, ours and the peer's in turns: medians and ratios.

At a depth (`-d`), with a cache type (`-ct`), and with several sequences a step (`-b 2 4 8`).
`--torch` adds transformers with torch in bfloat16, where both are installed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import compare_speed_torch
import fetch_models
import numpy as np
import peer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", type=Path, help="GGUF files (default: SmolLM2 and Gemma 3 270M)"
    )
    parser.add_argument("-p", type=int, default=512, help="tokens of prefill; 0: none")
    parser.add_argument("-n", type=int, default=64, help="tokens of decode; 0: none")
    parser.add_argument("-b", type=int, nargs="*", default=[1], help="sequences a step of decode")
    parser.add_argument("-d", type=int, default=0, help="tokens in the context before")
    parser.add_argument("-ct", default="f16", help="type of the caches")
    parser.add_argument("-t", type=int, default=2, help="threads")
    parser.add_argument("-r", type=int, default=5, help="runs of each, after one to warm up")
    parser.add_argument("--torch", action="store_true", help="transformers with torch, too")


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.d and max(arguments.b, default=1) > 1:
        raise SystemExit("compare_peer speed: -d is measured with one sequence only")
    paths = arguments.models or [fetch_models.smollm2(), fetch_models.gemma3()]
    others = ["peer", "torch"] if arguments.torch else ["peer"]
    title = "".join(f" {name + ' t/s':>10} {'ratio':>7}" for name in others)
    print(f"{'model':26} {'test':>12} {'ours t/s':>10}{title}", flush=True)
    rows = []
    for path in paths:
        rows.append(measure(path, arguments))
        show(rows[-1], others)
    return {
        "machine": platform.processor() or platform.machine(),
        "date": time.strftime("%F %T"),
        "rows": rows,
    }


def show(row: dict[str, Any], others: list[str]) -> None:
    for test, ours in row["ours"].items():
        rates = [row[name].get(test) for name in others]
        figures = "".join(f" {r:10.1f} {ours / r:7.2f}" if r else " " * 19 for r in rates)
        print(f"{row['model'][:26]:26} {test:>12} {ours:10.1f}{figures}", flush=True)


Samples = dict[str, dict[str, list[float]]]  # {engine: {test: tokens a second of each run}}


class Engine(Protocol):
    """Something that decodes. Sequence 0 holds a prefix; the others start empty."""

    def clear(self) -> None: ...
    def prefill(self, tokens: list[int], start: int) -> None: ...
    def back(self, n: int) -> None:
        """Forget positions from n on, of all sequences; at n > 0 there must be but one."""

    def step(self, tokens: list[int], position: int) -> None:
        """A token of each of the sequences 0, 1, ..."""


class Ours:
    def __init__(self, path: Path, n_ctx: int, n_seq: int, a: argparse.Namespace) -> None:
        from llamapy.runtime.context import Context
        from llamapy.runtime.model import Model

        options: dict[str, Any] = {"type_k": a.ct, "type_v": a.ct, "threads": a.t}
        self.context = Context(Model(path), n_ctx=n_ctx, n_seq_max=n_seq, **options)
        self.clear = self.context.memory.clear

    def prefill(self, tokens: list[int], start: int) -> None:
        for at in range(0, len(tokens), self.context.n_batch):
            self.context.decode(tokens[at : at + self.context.n_batch])

    def back(self, n: int) -> None:
        self.context.memory.remove(0, n, -1) if n else self.clear()

    def step(self, tokens: list[int], position: int) -> None:
        from llamapy.runtime.batch import Batch

        n = len(tokens)
        self.context.decode(Batch(tokens, positions=[position] * n, sequences=list(range(n))))


class Theirs:
    def __init__(self, context: peer.Context) -> None:
        self.context = context
        self.clear, self.prefill = context.clear, context.prefill

    def back(self, n: int) -> None:
        if n:
            self.context.lib.llama_memory_seq_rm(self.context.memory, 0, n, -1)
        else:
            self.clear()

    def step(self, tokens: list[int], position: int) -> None:
        n = len(tokens)
        sequences, outputs = np.arange(n), np.ones(n)
        self.context.decode(tokens, positions=[position] * n, sequences=sequences, outputs=outputs)


def measure(path: Path, a: argparse.Namespace) -> dict[str, Any]:
    n_ctx = a.d + max(a.p, a.n) + 8
    n_seq = max(a.b) if a.n else 1
    n_all = n_ctx * n_seq
    options: dict[str, Any] = {"type_k": a.ct, "type_v": a.ct, "threads": a.t}
    with ExitStack() as open_now:
        model = open_now.enter_context(peer.connect().open(path))
        context = open_now.enter_context(model.context(n_ctx=n_all, n_seq=n_seq, **options))
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, model.n_vocab, n_all)]
        engines: dict[str, Engine] = {"ours": Ours(path, n_all, n_seq, a), "peer": Theirs(context)}
        if a.torch:
            engines["torch"] = compare_speed_torch.Torch(path, a.t)
        return row_of(path.name, in_turns(engines, tokens, a))


def row_of(model: str, samples: Samples) -> dict[str, Any]:
    """{"model", "samples", and for each engine {test: median}}, as `tools/bench_diff.py` reads."""
    medians = {
        name: {test: statistics.median(rates) for test, rates in tests.items()}
        for name, tests in samples.items()
    }
    return {"model": model, **medians, "samples": samples}


def in_turns(engines: dict[str, Engine], tokens: list[int], a: argparse.Namespace) -> Samples:
    samples: Samples = {name: {} for name in engines}
    for engine in engines.values():
        engine.clear()
        engine.prefill(tokens[: a.d], 0)
    depth = f"@{a.d}" if a.d else ""
    for repetition in range(a.r + 1):
        for name, engine in engines.items():
            for test, rate in once(engine, tokens, a, name != "torch").items():
                if repetition:
                    samples[name].setdefault(test + depth, []).append(rate)
    return samples


def once(
    engine: Engine, tokens: list[int], a: argparse.Namespace, batched: bool
) -> dict[str, float]:
    """One prefill and one decode for each number of sequences, each after `-d` tokens."""
    rates = {}
    if a.p:
        engine.back(a.d)
        rates[f"pp{a.p}"] = rate(a.p, lambda: engine.prefill(tokens[a.d : a.d + a.p], a.d))
    for n_seq in a.b if a.n else ():
        if n_seq > 1 and not batched:
            continue
        if n_seq > 1:  # all sequences from the start: they share nothing
            engine.clear()
            start = 0
        else:
            engine.back(a.d)
            start = a.d
        rows = [tokens[i * n_seq : (i + 1) * n_seq] for i in range(a.n)]
        name = f"tg{a.n}" + (f"x{n_seq}" if n_seq > 1 else "")
        rates[name] = rate(a.n * n_seq, partial(steps, engine, rows, start))
    return rates


def steps(engine: Engine, rows: list[list[int]], start: int) -> None:
    for i, row in enumerate(rows):
        engine.step(row, start + i)


def rate(n: int, work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return n / (time.perf_counter() - start)
