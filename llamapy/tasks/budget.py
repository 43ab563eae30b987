"""The types of a model's tensors that give the least error at a given size.

Errors are measured: some rows of each tensor are quantized to every type that comes into question,
columns weighted by importances if there are any. The choice goes along the tensors' curves of error
over bytes, always to where a byte saves most. The same input gives the same choice everywhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from llamapy.core.errors import QuantError, UsageError
from llamapy.quants import codec
from llamapy.quants.api import NEED_IMPORTANCE
from llamapy.tasks import file_types, mixes, quantize_plan
from llamapy.tasks.importance_use import Importances
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.quantize_plan import Plan, Planned
from llamapy.tasks.quantize_rows import compile_for, encode
from llamapy.tasks.rows import Floats, Rows, to_f32
from llamapy.tasks.tensor_error import TensorError

N_TRIED = 2  # largest tensors of which every choice is tried,
TRIED_SHARE = 0.05  # if they could take more than this of the room
SAMPLE = 1 << 16  # values of a tensor that are measured, in whole rows spread over it

# From the smallest; where 256 does not divide the rows only the second list comes into question.
LADDER = ("q2_K", "q3_K", "iq3_s", "iq4_xs", "q4_K", "q5_K", "q6_K", "q8_0")
LADDER_32 = ("q4_0", "iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0")
WITH_IMPORTANCE = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs")
_EXACT = {"f32": "f16", "bf16": "bf16", "f16": "f16"}  # the largest choice by the source's type

_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, slots=True)
class Choice:
    """A type that a tensor may get: its bytes, and the relative error that it gives."""

    kind: str
    n_bytes: int
    error: float


@dataclass(frozen=True)
class Measured:
    """A tensor with all its choices, and how much its error counts."""

    planned: Planned
    choices: tuple[Choice, ...]
    weight: float = 1.0

    def cost(self, choice: Choice) -> float:
        """What is made least of: the square of the relative error, by the tensor's weight."""
        return self.weight * choice.error**2


def parse_size(text: str) -> int:
    """Bytes from `3.2GiB`, `800MB`, `1.5G`. UsageError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]?)(I?)B?\s*", text.upper())
    if match is None or (match[3] and not match[2]):
        raise UsageError(f"{text!r} is not a size", hint="write 800MB or 3.2GiB")
    unit = _BINARY[match[2]] if match[3] else _UNITS[match[2]]
    return int(float(match[1]) * unit)


def kinds_for(one: Planned, has_importance: bool) -> list[str]:
    """Types that come into question for a tensor, from the smallest."""
    row = one.info.ne[0] if one.info.ne else 1
    names = [*LADDER, *LADDER_32] if row % 256 else list(LADDER)
    if has_importance:
        names += WITH_IMPORTANCE
    names = [name for name in names if row % codec.get(name).n_values == 0]
    names.append(_EXACT.get(one.source, one.source))
    order = {name: (codec.get(name).bpw(), i) for i, name in enumerate(dict.fromkeys(names))}
    most = codec.get(one.source).bpw()
    return [name for name in sorted(order, key=lambda n: order[n]) if codec.get(name).bpw() <= most]


def measure(
    file: AnyFile,
    plan: Plan,
    importances: Importances | None,
    threads: int,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> list[Measured]:
    """Measure every choice of every tensor that the file type, and not the user, decides."""
    free = [one for one in plan.tensors if one.free]
    tied = not any(mixes.category(one.name) == "output" for one in plan.tensors)
    total, done, found = sum(one.info.n_elements for one in free), 0, []
    compile_for((one.source, kind) for one in free for kind in _kinds(one, importances))
    with ThreadPoolExecutor(max(1, threads)) as pool:
        work = pool.map(lambda one: _measure(file, one, importances, tied), free)
        for one, measured in zip(free, work):
            found.append(measured)
            done += one.info.n_elements
            if on_progress is not None:
                on_progress(f"measuring {one.name}", done, total)
    return found


def _kinds(one: Planned, importances: Importances | None) -> list[str]:
    return kinds_for(one, bool(importances and importances.by_name.get(one.info.name)))


def sample(rows: Rows) -> list[int]:
    """Numbers of the rows that are measured: evenly spread, each matrix has its share."""
    n = min(rows.n_rows, max(4, SAMPLE // max(rows.n_per_row, 1)))
    return [int((i + 0.5) * rows.n_rows / n) for i in range(n)]


def _measure(file: AnyFile, one: Planned, importances: Importances | None, tied: bool) -> Measured:
    rows = Rows(file, one.info)
    weights = importances.by_name.get(one.info.name) if importances else None
    values = _sampled(rows)
    choices = []
    for kind in _kinds(one, importances):
        error = 0.0 if kind == one.source else _error(rows, values, kind, weights)
        if math.isfinite(error):
            choices.append(Choice(kind, quantize_plan.bytes_as(one.info, kind), error))
    return Measured(one, tuple(choices), role_weight(one.name, tied))


def _sampled(rows: Rows) -> dict[int, Floats]:
    """The rows that are measured, by number. Those that are not finite do not count here: unless
    the user wants them, `run` refuses them.
    """
    room = np.empty(rows.n_per_row, np.float32)
    found = {row: rows.floats(row, row + 1, room).copy() for row in sample(rows)}
    return {row: values for row, values in found.items() if np.isfinite(values).all()}


def _error(
    rows: Rows, values: Mapping[int, Floats], kind: str, weights: Sequence[Floats | None] | None
) -> float:
    """The relative error of rows in a type; infinite if it cannot hold them."""
    found, error = codec.get(kind), TensorError()
    out = np.empty((1, found.row_bytes(rows.n_per_row)), np.uint8)
    got = np.empty((1, rows.n_per_row), np.float32)
    for number, row in values.items():
        column_weights = weights[number // rows.by_matrix] if weights else None
        given = column_weights
        if given is None and kind in NEED_IMPORTANCE:
            given = np.ones(rows.n_per_row, np.float32)
        try:
            encode(found, row, out, given, rows, number)
        except QuantError:
            return math.inf
        to_f32(out.reshape(-1), found, got.reshape(-1))
        if not np.isfinite(got).all():
            return math.inf
        error.add(row, got, column_weights)
    return error.weighted_relative


# How much the squared relative error of a tensor changes the predictions, against a ffn_down:
# rounded means of the KL divergence by squared error that each kind alone gives in Q4_0, measured
# on SmolLM2 135M, Gemma 3 270M and Qwen2.5 1.5B. docs/quantize.md has the table.
_ROLE_WEIGHTS: Mapping[str, float] = {
    "output": 30.0,
    "token_embd": 3.0,
    "v": 0.8,
    "ffn_down": 1.0,
    "ffn_up": 0.75,
    "ffn_gate": 0.3,
    "attn_output": 0.2,
    "q": 0.17,
    "k": 0.15,
}
_OTHER = 0.5


def role_weight(name: str, tied: bool) -> float:
    """How much the error of a tensor of this kind counts. tied: the embeddings are the output."""
    group = mixes.category(name)
    return _ROLE_WEIGHTS.get("output" if tied and group == "token_embd" else group, _OTHER)


# -- the choice


def curve(one: Measured) -> list[Choice]:
    """The choices that are worth their bytes: each step down in error costs more a unit gained."""
    best: list[Choice] = []
    for choice in sorted(one.choices, key=lambda c: (c.n_bytes, one.cost(c))):
        if best and one.cost(choice) >= one.cost(best[-1]):
            continue
        while len(best) > 1 and _gain(one, best[-2], best[-1]) <= _gain(one, best[-1], choice):
            best.pop()
        best.append(choice)
    return best


def _gain(one: Measured, a: Choice, b: Choice) -> float:
    """What a byte more saves between two choices."""
    return (one.cost(a) - one.cost(b)) / max(b.n_bytes - a.n_bytes, 1)


def choose(measured: Sequence[Measured], n_bytes: int) -> list[Choice]:
    """A choice for each tensor so that all take at most n_bytes, with about the least error.

    The largest tensors (embeddings, output) are a large part of a small model: a step of theirs
    that does not fit would leave much unused. For them every choice is tried.
    """
    least = sum(min(choice.n_bytes for choice in one.choices) for one in measured)
    if least > n_bytes:
        raise QuantError(
            f"the tensors take at least {least} bytes, {n_bytes} are left for them",
            hint="importances (--imatrix) allow smaller types",
        )
    most = [max(choice.n_bytes for choice in one.choices) for one in measured]
    by_size = sorted(range(len(measured)), key=lambda index: (-most[index], index))
    large = [index for index in by_size[:N_TRIED] if most[index] > n_bytes * TRIED_SHARE]
    best: list[Choice] = []
    for given in product(*(measured[index].choices for index in large)):
        tried = list(measured)
        for index, choice in zip(large, given):
            tried[index] = replace(measured[index], choices=(choice,))
        chosen = _along_curves(tried, n_bytes)
        if chosen and (not best or _total(measured, chosen) < _total(measured, best)):
            best = chosen
    return _fill(measured, best, n_bytes - sum(one.n_bytes for one in best))


def _total(measured: Sequence[Measured], chosen: Sequence[Choice]) -> float:
    return sum(one.cost(choice) for one, choice in zip(measured, chosen))


def _along_curves(measured: Sequence[Measured], n_bytes: int) -> list[Choice] | None:
    """Steps along the tensors' curves, those that save most a byte first; None if nothing fits."""
    curves = [curve(one) for one in measured]
    chosen = [points[0] for points in curves]
    left = n_bytes - sum(one.n_bytes for one in chosen)
    if left < 0:
        return None
    steps = [
        (-_gain(one, a, b), index, place)
        for index, (one, points) in enumerate(zip(measured, curves))
        for place, (a, b) in enumerate(zip(points, points[1:]))
    ]
    stopped: set[int] = set()
    for _, index, place in sorted(steps):
        more = curves[index][place + 1].n_bytes - chosen[index].n_bytes
        if index in stopped or more > left:
            stopped.add(index)  # later steps of this tensor go on from one that was not taken
            continue
        chosen[index] = curves[index][place + 1]
        left -= more
    return _fill(measured, chosen, left)


def _fill(measured: Sequence[Measured], chosen: list[Choice], left: int) -> list[Choice]:
    """Use up what is left: single exchanges that fit, the one that saves most first."""
    while True:
        best: tuple[float, int, Choice] | None = None
        for index, one in enumerate(measured):
            now = chosen[index]
            for other in one.choices:
                saved = one.cost(now) - one.cost(other)
                if (
                    saved > 0
                    and other.n_bytes - now.n_bytes <= left
                    and (best is None or saved > best[0])
                ):
                    best = (saved, index, other)
        if best is None:
            return chosen
        _, index, other = best
        left -= other.n_bytes - chosen[index].n_bytes
        chosen[index] = other


def apply(plan: Plan, measured: Sequence[Measured], chosen: Sequence[Choice]) -> Plan:
    """The plan with these types, named after the type that most of its bytes have."""
    kinds = {one.planned.name: choice.kind for one, choice in zip(measured, chosen)}
    made = quantize_plan.with_kinds(plan, kinds)
    sums: dict[str, int] = {}
    for one in made.tensors:
        sums[one.kind] = sums.get(one.kind, 0) + one.n_bytes
    main = max(sums, key=lambda kind: (sums[kind], kind), default="f32")
    number = file_types.guess([codec.get(main).type_id]) & ~file_types.GUESSED
    named = next(one for one in file_types.FILE_TYPES if one.id == number)
    return replace(made, file_type=replace(named, base=main))
