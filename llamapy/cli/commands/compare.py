"""llamapy compare: how far the weights of two files are apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from llamapy.cli import console
from llamapy.cli.options import Json, Threads

if TYPE_CHECKING:
    from llamapy.tasks.tensor_error import TensorError

First = Annotated[Path, Argument(metavar="A", help="GGUF file that counts as the truth.")]
Second = Annotated[Path, Argument(metavar="B", help="GGUF file of the same model.")]
ReportFile = Annotated[Path | None, Option(metavar="FILE", help="All of it, as .html or .json.")]

_COLUMNS = ("tensor", "a", "b", "RMSE", "relative", "largest", "cosine")


def main(
    a: First,
    b: Second,
    report: ReportFile = None,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """Measure how far the weights of B are from those of A, tensor by tensor."""
    from llamapy.gguf.split import open_split
    from llamapy.quants.codec import type_sizes
    from llamapy.tasks import compare
    from llamapy.tasks import report as reports

    if report is not None:
        reports.check_path(report, inputs=[a, b])
    with (
        open_split(a, mmap=False, type_sizes=type_sizes) as one,
        open_split(b, mmap=False, type_sizes=type_sizes) as other,
    ):
        total = sum(info.n_bytes for info in one.tensors)
        with console.progress("comparing", total, unit="B") as tick:
            found = compare.compare(
                one,
                other,
                threads=threads,
                on_progress=lambda name, done, total: tick(done, total, name),
            )
        made = reports.of_comparison(found, (one.path, other.path))
    if report is not None:
        reports.write(made, report)
    for note in made.notes:
        console.warn(note)
    if json:
        console.json(made.as_json())
        return
    rows = [(t.name, t.before, t.after, *_figures(t.error)) for t in found.tensors]
    rows.append(("all", "", "", *_figures(found.total)))
    console.table(f"a: {one.path}  b: {other.path}", _COLUMNS, rows, numbers=_COLUMNS[3:])


def _figures(error: TensorError) -> tuple[str, ...]:
    relative = f"{100 * error.relative:.4g} %"
    return f"{error.rmse:.4g}", relative, f"{error.largest:.4g}", f"{error.cosine:.7f}"
