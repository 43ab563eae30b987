"""What `llamapy imatrix` does and shows: collecting with a bar, tables of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llamapy.cli import console, measuring
from llamapy.cli.kernels import compiling
from llamapy.cli.running import open_model
from llamapy.core.errors import OutputError, UsageError
from llamapy.tasks import importance
from llamapy.tasks.collect import Collected
from llamapy.tasks.imatrix_stats import compare, statistics
from llamapy.tasks.importance import Imatrix

DEFAULT = Path("imatrix.gguf")
FORMATS: dict[str, Callable[..., None]] = {
    "gguf": importance.write_gguf,
    "dat": importance.write_dat,
}


@dataclass(frozen=True)
class Target:
    """Where a matrix is written, and how. The format is that of the suffix unless it is given."""

    path: Path | None
    format: str
    force: bool

    def __post_init__(self) -> None:
        if self.format and self.format not in FORMATS:
            raise UsageError(f"no output format {self.format!r}", hint="there are gguf and dat")

    @property
    def kind(self) -> str:
        return self.format or ("dat" if self.path and self.path.suffix == ".dat" else "gguf")

    def check(self) -> None:
        """Refuse an existing output before any work."""
        path = self.path or DEFAULT
        if path.exists() and not self.force:
            raise OutputError(f"{path}: is there already", hint="--force overwrites it")

    def write(self, imatrix: Imatrix, *, ending: str = "") -> Path:
        path = self.path or DEFAULT
        path = path.with_name(path.name + ending) if ending else path
        FORMATS[self.kind](imatrix, path, overwrite=self.force or bool(ending))
        return path


def collect(
    model: Path | None,
    files: list[Path],
    target: Target,
    *,
    before: list[Path],
    as_json: bool,
    **options: Any,
) -> None:
    """Collect over the texts of all files, one after the other."""
    from llamapy.tasks import collect as task

    if not files:
        raise UsageError("a text is missing", hint="-f FILE; or show, convert, merge, diff")
    target.check()
    text = b"".join(measuring.read(file) for file in files)
    earlier = [importance.read(path) for path in before]
    opened = open_model(model)
    with compiling() as hook, measuring.running("importances") as on_chunk:
        found = task.collect(
            opened,
            text,
            dataset=", ".join(str(file) for file in files),
            before=earlier,
            on_chunk=on_chunk,
            on_save=lambda imatrix, done: _save(target, imatrix, done),
            on_compile=hook,
            **options,
        )
    path = target.write(found.imatrix)
    n = found.imatrix.chunk_count
    if found.interrupted:
        console.warn(f"{path} holds what {n} chunks gave")
    for name, entry in found.imatrix.entries.items():
        if entry.unseen:
            console.warn(f"{name}: no token reached experts {_list(entry.unseen)}")
    _say(found, path, as_json=as_json)
    if found.interrupted:
        raise KeyboardInterrupt  # the exit code says that it was not the whole text


def _say(found: Collected, path: Path, *, as_json: bool) -> None:
    n, n_entries = found.imatrix.chunk_count, len(found.imatrix.entries)
    if as_json:
        console.json(
            {"path": path, "chunks": n, "entries": n_entries}
            | {"ppl": found.ppl, "ppl_err": found.ppl_err, "interrupted": found.interrupted}
        )
        return
    if found.ppl:
        console.out().print(f"Final estimate: PPL = {found.ppl:.4f} +/- {found.ppl_err:.5f}")
    console.out().print(f"{path}: {n_entries} weights, {n} chunks", soft_wrap=True)


def _save(target: Target, imatrix: Imatrix, done: int) -> None:
    target.write(imatrix, ending=f".at_{done}")


def tool(words: Sequence[str], more: list[Path], target: Target, *, as_json: bool) -> None:
    """show, convert, merge or diff: needs no model."""
    verb, paths = words[0], [*(Path(word) for word in words[1:]), *more]
    needed = {"show": (1, 99), "convert": (1, 1), "merge": (1, 9999), "diff": (2, 2)}
    if verb not in needed:
        raise UsageError(f"no action {verb!r}", hint="there are show, convert, merge, diff")
    least, most = needed[verb]
    if not least <= len(paths) <= most:
        raise UsageError(f"{verb} takes {least if least == most else f'{least} or more'} files")
    if verb in ("convert", "merge"):
        if target.path is None:
            raise UsageError("an output is missing", hint="-o FILE")
        target.check()
    found = [importance.read(path) for path in paths]
    if verb == "show":
        _show(found, as_json=as_json)
    elif verb == "diff":
        _diff(found[0], found[1], as_json=as_json)
    else:
        whole = found[0] if verb == "convert" else importance.merge(found)
        path = target.write(whole)
        console.note(f"{path}: {len(whole.entries)} weights, {whole.chunk_count} chunks")


def _show(several: list[Imatrix], *, as_json: bool) -> None:
    if as_json:
        whole = [
            {
                "path": one.path,
                "datasets": one.datasets,
                "chunk_count": one.chunk_count,
                "chunk_size": one.chunk_size,
                "entries": [asdict(s) for s in statistics(one)],
            }
            for one in several
        ]
        console.json(whole[0] if len(whole) == 1 else whole)
        return
    for one in several:
        unit = "calls" if one.is_legacy else "tokens"
        columns = ["weight", "matrices", "columns", unit, "mean", "std", "max", "zeros"]
        columns += ["entropy", "top 1 %"]
        rows, unseen = [], []
        for s in statistics(one):
            seen = str(s.most) if s.least == s.most else f"{s.least}-{s.most}"
            figures = [f"{x:.4g}" for x in (s.mean, s.std, s.largest)]
            shares = [f"{s.entropy:.3f}", f"{s.top:.1%}"]
            rows.append([s.name, s.n_mat, s.n_cols, seen, *figures, s.zeros, *shares])
            if s.unseen:
                unseen.append(f"{s.name}: {_list(s.unseen)} of {s.n_mat}")
        size = f" of {one.chunk_size} tokens" if one.chunk_size else ""
        title = f"{one.path}: {', '.join(one.datasets)}, {one.chunk_count} chunks{size}"
        console.table(title, columns, rows, numbers=columns[1:])
        if unseen:
            console.table("experts never reached", ["weight and experts"], [[u] for u in unseen])


def _diff(a: Imatrix, b: Imatrix, *, as_json: bool) -> None:
    found = compare(a, b)
    if as_json:
        console.json(found)
        return
    columns = ["weight", "cosine", "difference", "largest"]
    rows = [
        [d.name, f"{d.cosine:.6f}", f"{d.relative:.2%}", f"{d.largest:.2%}"]
        for d in found.differences
    ]
    console.table(f"{a.path} and {b.path}", columns, rows, numbers=columns[1:])
    for title, names in (
        (f"only in {a.path}", found.only_a),
        (f"only in {b.path}", found.only_b),
        ("of different sizes", found.misfits),
    ):
        if names:
            console.table(title, ["weight"], [[name] for name in names])


def _list(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:12]))
    return shown + (f" and {len(numbers) - 12} more" if len(numbers) > 12 else "")
