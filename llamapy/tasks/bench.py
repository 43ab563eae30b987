"""Speed of prefill and decode, measured as llama-bench does (tools/llama-bench/llama-bench.cpp).

Random tokens, BOS first where the model wants it; a warm-up of the whole prompt and one generated
token; the first `n_depth` positions are computed once and put back before every repetition. The
clock covers decoding only: filling, warm-up and the compilation of kernels are outside it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from math import fsum, sqrt
from time import perf_counter_ns
from typing import Any

import numpy as np

from llamapy.core.errors import UsageError
from llamapy.engine.trace import Event, Trace
from llamapy.runtime import state
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.tasks import file_types

FLASH = {"auto": -1, "off": 0, "on": 1, "0": 0, "1": 1, "-1": -1}
FLASH_NAMES = {-1: "auto", 0: "off", 1: "on"}


@dataclass(frozen=True)
class Case:
    """One line of the table. n_threads 0 is what the machine allows, flash_attn -1 is auto."""

    model: str
    n_prompt: int = 512
    n_gen: int = 0
    n_depth: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    type_k: str = "f16"
    type_v: str = "f16"
    n_threads: int = 0
    flash_attn: int = -1
    repack: bool = True
    mmap: bool = True

    @property
    def test(self) -> str:
        """As in the table: pp512, tg128, pp512+tg128, with " @ d4096"."""
        parts = [f"pp{self.n_prompt}"] * bool(self.n_prompt)
        parts += [f"tg{self.n_gen}"] * bool(self.n_gen)
        return "+".join(parts) + (f" @ d{self.n_depth}" if self.n_depth else "")


@dataclass
class Result:
    """A measured case: nanoseconds of each repetition, when it began, and facts of the model."""

    case: Case
    arch: str
    file_type: str
    n_bytes: int
    n_params: int
    started: str
    samples_ns: list[int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def samples_ts(self) -> list[float]:
        """Tokens per second of each repetition."""
        n = self.case.n_prompt + self.case.n_gen
        return [1e9 * n / max(ns, 1) for ns in self.samples_ns]


def mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values) if values else 0.0


def deviation(values: Sequence[float]) -> float:
    """The sample's standard deviation, from differences to the mean (stable); 0 for one value."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return sqrt(fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def numbers(text: str) -> list[int]:
    """ "512", "1,2,4", "1-4", "128-512+128" or "1-16*2" as a list. UsageError for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?:([+*])(\d+))?)?", part.strip())
        if match is None:
            raise UsageError(f"{part!r} is no number or range", hint="as in 1,2,4 or 128-512+128")
        first, last = int(match[1]), int(match[2] or match[1])
        sign, step = match[3] or "+", int(match[4] or 1)
        if step < (2 if sign == "*" else 1) or (sign == "*" and first == 0):
            raise UsageError(f"{part!r} does not come to an end")
        if last < first:
            raise UsageError(f"{part!r} goes down")
        while first <= last:
            found.append(first)
            first = first + step if sign == "+" else first * step
    return found


def pair(text: str) -> tuple[int, int]:
    """ "512,128" of -pg."""
    found = numbers(text)
    if len(found) != 2:
        raise UsageError(f"-pg {text!r} is not PROMPT,GENERATED", hint="as in -pg 512,128")
    return found[0], found[1]


def cases(
    models: Sequence[str],
    *,
    n_prompt: Sequence[int] = (512,),
    n_gen: Sequence[int] = (128,),
    pairs: Sequence[tuple[int, int]] = (),
    n_depth: Sequence[int] = (0,),
    mmap: bool = True,
    **lists: Sequence[Any],
) -> list[Case]:
    """Every combination, in llama-bench's order (which opens a model once). `lists` are values of
    Case's other fields. UsageError if there is nothing to measure."""
    order = ("repack", "n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "n_threads")
    values = [tuple(lists.get(name) or (getattr(Case, name),)) for name in order]
    tests = [(p, 0) for p in n_prompt if p] + [(0, n) for n in n_gen if n]
    tests += [pair for pair in pairs if any(pair)]
    if not tests:
        raise UsageError("nothing to measure", hint="-p, -n or -pg")
    return [
        Case(model, p, n, depth, mmap=mmap, **dict(zip(order, combined)))
        for model in models
        for combined in product(*values)
        for depth in n_depth
        for p, n in tests
    ]


Note = Callable[[int, int, str], None]
"""Called with the number of the case, how many there are, and what is done now."""


def run(
    wanted: Sequence[Case],
    *,
    reps: int = 5,
    warmup: bool = True,
    traced: bool = False,
    seed: int = 0,
    note: Note = lambda case, total, doing: None,
    on_compile: Callable[[str, int, int], None] | None = None,
    backend: str = "cpu",
) -> Iterator[Result]:
    """Measure the cases one by one. traced: one more repetition, untimed, that notes every node."""
    if reps < 1:
        raise UsageError(f"{reps} repetitions; at least 1 is needed")
    model: Model | None = None
    opened: tuple[Any, ...] = ()
    for i, case in enumerate(wanted, 1):
        note(i, len(wanted), "starting")
        if model is None or opened != (case.model, case.mmap, case.repack):
            model = Model(case.model, mmap=case.mmap, repack=case.repack)
            opened = (case.model, case.mmap, case.repack)
        bench = _Bench(model, case, seed, on_compile, backend)
        result = Result(
            replace(case, n_threads=bench.threads),
            model.arch,
            _file_type(model),
            model.n_bytes,
            model.n_params,
            datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
        if warmup:
            note(i, len(wanted), "warming up")
            bench.warm_up()
        for rep in range(reps):
            note(i, len(wanted), f"run {rep + 1}/{reps}")
            result.samples_ns.append(bench.measure())
        if traced:
            note(i, len(wanted), "tracing")
            result.events = bench.trace()
        yield result


class _Bench:
    """One case with its context, filled to the depth."""

    def __init__(self, model: Model, case: Case, seed: int, on_compile: Any, backend: str) -> None:
        self.model, self.case = model, case
        self.rng = np.random.default_rng(seed)
        self._hook, self._compiling, self._compiled_ns = on_compile, 0, 0
        self.context = Context(
            model,
            n_ctx=case.n_prompt + case.n_gen + case.n_depth,
            n_batch=case.n_batch,
            n_ubatch=case.n_ubatch,
            type_k=case.type_k,
            type_v=case.type_v,
            flash_attn=FLASH_NAMES[case.flash_attn],
            threads=case.n_threads or None,
            on_compile=self._on_compile,
            backend=backend,
        )
        self._filled: bytes | None = None

    @property
    def threads(self) -> int:
        return max(getattr(b, "n_threads", 1) for b in self.context.engine.backends)

    def _on_compile(self, kernel: str, done: int, total: int) -> None:
        """Count the time that kernels take to compile, and pass it on."""
        now = perf_counter_ns()
        if self._compiling:
            self._compiled_ns += now - self._compiling
        self._compiling = now if done < total else 0
        if self._hook is not None:
            self._hook(kernel, done, total)

    def warm_up(self) -> None:
        self._restore()
        if self.case.n_prompt:
            self._prompt(self.case.n_prompt)
        if self.case.n_gen:
            self._generate(1)

    def measure(self) -> int:
        """Nanoseconds of one repetition."""
        self._restore()
        compiled, start = self._compiled_ns, perf_counter_ns()
        self._work()
        return perf_counter_ns() - start - (self._compiled_ns - compiled)

    def trace(self) -> list[Event]:
        """Every node of one repetition."""
        self._restore()
        with Trace(self.context.engine.backends) as trace:
            self._work()
        return trace.events

    def _work(self) -> None:
        if self.case.n_prompt:
            self._prompt(self.case.n_prompt)
        if self.case.n_gen:
            self._generate(self.case.n_gen)

    def _restore(self) -> None:
        """Leave in memory just the first n_depth positions, computed only once."""
        self.context.memory.clear()
        if not self.case.n_depth:
            return
        if self._filled is None:
            self._prompt(self.case.n_depth)
            self._filled = state.save(self.context, 0)
        else:
            state.load(self.context, self._filled, 0)

    def _draw(self, n: int, *, first: bool) -> np.ndarray[Any, np.dtype[np.int32]]:
        tokens = self.rng.integers(0, self.model.n_vocab, n).astype(np.int32)
        tokenizer = self.model.tokenizer
        if first and tokenizer.add_bos and tokenizer.bos is not None:
            tokens[0] = tokenizer.bos
        return tokens

    def _prompt(self, n: int) -> None:
        tokens, size = self._draw(n, first=True), self.context.n_batch
        for at in range(0, n, size):
            self.context.decode(Batch(tokens[at : at + size]), copy=False)

    def _generate(self, n: int) -> None:
        for token in self._draw(n, first=True):
            self.context.decode([int(token)], copy=False)


def _file_type(model: Model) -> str:
    """The file type's name as llama.cpp shows it ("Q4_K - Medium"); guessed where a file says
    none."""
    kinds = [tensor.kind.type_id for tensor in model.tensors.values()]
    said = model.metadata.get("general.file_type")
    if isinstance(said, int):
        return _spelled(said)
    return f"(guessed) {_spelled(file_types.guess(kinds) & ~file_types.GUESSED)}"


def _spelled(number: int) -> str:
    name = next((one.name for one in file_types.FILE_TYPES if one.id == number), "unknown")
    for end, word in (("_S", "Small"), ("_M", "Medium"), ("_L", "Large")):
        if re.fullmatch(rf"Q\d_K{end}", name):
            return f"{name[:-2]} - {word}"
    return f"all {name}" if name == "F32" else name


def cpu_name() -> str:
    """The processor's name, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        return os.uname().machine
    return os.uname().machine
