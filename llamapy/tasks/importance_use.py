"""Importances as a quantization uses them: checked against the model, odd values made harmless.

What llama.cpp would take as it is, and spoil the tensor with, is replaced here and said: zeros,
negative and non-finite importances, experts that no token has reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import ModelError, QuantError
from llamapy.gguf.limits import shown
from llamapy.tasks import mixes
from llamapy.tasks.file_types import FileType
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.quantize_plan import Plan, Planned

Floats = NDArray[np.float32]

_LISTED = 8  # mismatches and names that a message spells out


@dataclass
class Importances:
    """Weights of the columns by tensor name: a list, one item a matrix (expert), None for none."""

    by_name: dict[str, list[Floats | None]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    n_entries: int = 0

    def of(self, name: str, matrix: int) -> Floats | None:
        """The importances of the columns of one matrix of a tensor."""
        several = self.by_name.get(name)
        return several[matrix] if several else None


def chosen(imatrix: Imatrix, include: Sequence[str], exclude: Sequence[str]) -> dict[str, Entry]:
    """Entries whose name has a part of `include` (if any) and none of `exclude`."""
    return {
        name: entry
        for name, entry in imatrix.entries.items()
        if not any(part in name for part in exclude)
        and (not include or any(part in name for part in include))
    }


def for_plan(
    imatrix: Imatrix, entries: dict[str, Entry], plan: Plan, *, allow_nonfinite: bool = False
) -> Importances:
    """Weights for the tensors of a plan that change.

    ModelError lists every entry that is not of this model's size; QuantError names the first
    importance that is not finite; both before anything is written.
    """
    found = Importances(n_entries=len(entries))
    wanted = [one for one in plan.tensors if one.changes or one.free]
    _check_sizes(imatrix, entries, wanted, found)
    for one in wanted:
        entry = entries.get(one.info.name)
        if entry is None or one.info.name in found.by_name or not _fits(entry, one):
            continue
        found.by_name[one.info.name] = _weights(one, entry, found.warnings, allow_nonfinite)
    _warn_missing(imatrix, entries, wanted, found)
    return found


def _shape(one: Planned) -> tuple[int, int]:
    """Matrices and columns of a tensor."""
    ne = one.info.ne or (1,)
    return int(np.prod(ne[2:])), ne[0]


def _fits(entry: Entry, one: Planned) -> bool:
    n_mat, n_cols = _shape(one)
    return entry.sums.size in (n_cols, n_cols * n_mat) and (
        len(entry.counts) in (1, n_mat) and entry.sums.size % len(entry.counts) == 0
    )


def _check_sizes(
    imatrix: Imatrix, entries: dict[str, Entry], wanted: Sequence[Planned], found: Importances
) -> None:
    wrong = []
    for one in wanted:
        entry = entries.get(one.info.name)
        if entry is None or _fits(entry, one):
            continue
        n_mat, n_cols = _shape(one)
        need = f"{n_cols}" if n_mat == 1 else f"{n_cols} or {n_cols * n_mat}"
        text = f"{shown(one.info.name)} has {entry.sums.size} importances, needs {need}"
        if mixes.category(one.info.name) == "token_embd":  # llama.cpp goes without them, too
            found.warnings.append(f"{text}: quantized without importances")
        else:
            wrong.append(text)
    strangers = wanted and entries and not any(one.info.name in entries for one in wanted)
    if strangers:
        wrong.append("none of its entries is a tensor that is quantized here")
    if wrong:
        raise ModelError(
            f"{imatrix.described()} was made for another model: {'; '.join(wrong)}",
            hint="collect one with this model, or leave out --imatrix",
        )


def _weights(
    one: Planned, entry: Entry, warnings: list[str], allow_nonfinite: bool
) -> list[Floats | None]:
    """Importances of each matrix, without what could zero a weight."""
    n_mat, n_cols = _shape(one)
    means = entry.mean_squares().reshape(-1, n_cols)
    name = shown(one.info.name)
    unseen = [i for i in entry.unseen if len(entry.counts) > 1]
    if unseen:
        listed = ", ".join(map(str, unseen[:_LISTED])) + (", ..." if len(unseen) > _LISTED else "")
        warnings.append(
            f"{name}: {len(unseen)} of {n_mat} experts were never used ({listed}):"
            " all their columns count the same"
        )
    bad = ~np.isfinite(means)
    if bad.any() and not allow_nonfinite:
        row, column = np.unravel_index(int(np.argmax(bad)), bad.shape)
        matrix = f"matrix {row}, " if len(means) > 1 else ""
        raise QuantError(
            f"tensor {name}: the importance of {matrix}column {column} is {means[row, column]}",
            hint="--allow-nonfinite takes the mean of the others instead",
        )
    cleaned = [_cleaned(row) for row in means]
    n_odd = int(np.count_nonzero(bad | (means <= 0)))
    if n_odd:
        n_bad = int(bad.sum())
        kinds = [
            (int((means == 0).sum()), "zero"),
            (int((means < 0).sum() - (bad & (means < 0)).sum()), "negative"),
            (n_bad, "not finite"),
        ]
        counted = ", ".join(f"{n} {what}" for n, what in kinds if n)
        warnings.append(
            f"{name}: {n_odd} of {means.size} importances are odd ({counted}):"
            " the mean of the others stands for them"
        )
    return cleaned * n_mat if len(cleaned) == 1 else cleaned


def _cleaned(row: Floats) -> Floats | None:
    """A row whose odd values are the mean of the valid ones; None without any valid one."""
    valid = np.isfinite(row) & (row > 0)
    if valid.all():
        return np.ascontiguousarray(row)
    if not valid.any():
        return None
    found: Floats = np.where(valid, row, row[valid].mean(dtype=np.float64)).astype(np.float32)
    return found


def _warn_missing(
    imatrix: Imatrix, entries: dict[str, Entry], wanted: Sequence[Planned], found: Importances
) -> None:
    without = [
        one.name
        for one in wanted
        if one.info.name not in entries and mixes.category(one.name) not in ("token_embd", "output")
    ]
    if without:
        found.warnings.append(f"no importances for {_some(without)}")


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(shown(name) for name in names[:_LISTED])
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)} tensors: {listed}{more}"


def missing(plan: Plan, importances: Importances | None) -> Iterator[Planned]:
    """Tensors that are not to be made without importances, and have none."""
    for one in plan.tensors:
        if not one.changes or not mixes.wants_importance(one.name, one.kind, plan.file_type):
            continue
        if importances is None or one.info.name not in importances.by_name:
            yield one


def require(plan: Plan, file_type: FileType, importances: Importances | None) -> None:
    """QuantError naming the tensors that need importances and have none."""
    names = [f"{one.name} ({one.kind})" for one in missing(plan, importances)]
    if names:
        raise QuantError(
            f"{file_type.name} needs importances, which are missing for {_some(names)}",
            hint="collect them with `llamapy imatrix` and give them with --imatrix",
        )
