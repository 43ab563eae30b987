"""Reports of how far quantized tensors are from what they stand for: as JSON, or a page to read.

The page (report_page.py) holds everything it shows: no script, picture or style is fetched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llamapy.core.errors import UsageError
from llamapy.gguf.output import Path, PendingFiles
from llamapy.tasks import mixes
from llamapy.tasks.budget import Choice, Measured
from llamapy.tasks.compare import Compared, Comparison
from llamapy.tasks.quantize import Job
from llamapy.tasks.tensor_error import TensorError, bin_edges


@dataclass
class Report:
    """What a report is about. `weighted`: errors count the importance of the columns."""

    title: str
    before: str
    after: str
    tensors: list[Compared]
    weighted: bool = False
    notes: list[str] = field(default_factory=list)
    trades: list[tuple[Measured, Choice]] = field(default_factory=list)  # what a budget weighed

    @property
    def total(self) -> TensorError:
        """All tensors together."""
        whole = TensorError()
        for one in self.tensors:
            whole.merge(one.error)
        return whole

    def as_json(self) -> dict[str, Any]:
        """In dicts and lists."""
        found: dict[str, Any] = {
            "title": self.title,
            "before": self.before,
            "after": self.after,
            "histogram_edges": [*bin_edges()[:-1], "inf"],
            "total": self.total.as_json(),
            "tensors": [_tensor(one) for one in self.tensors],
            "notes": self.notes,
        }
        if self.trades:
            found["trades"] = [
                {
                    "name": measured.planned.name,
                    "weight": measured.weight,
                    "chosen": chosen.kind,
                    "choices": [vars_of(choice) for choice in measured.choices],
                }
                for measured, chosen in self.trades
            ]
        return found


def _tensor(one: Compared) -> dict[str, Any]:
    return {
        "name": one.name,
        "layer": mixes.layer_of(one.name),
        "shape": list(one.shape),
        "from": one.before,
        "to": one.after,
        "n_bytes": one.n_bytes,
        **one.error.as_json(),
    }


def vars_of(choice: Choice) -> dict[str, Any]:
    """A choice in a dict."""
    return {"type": choice.kind, "n_bytes": choice.n_bytes, "error": choice.error}


def of_job(job: Job, target: str) -> Report:
    """The report of a quantization that was run with `measure`."""
    tensors = [
        Compared(
            one.name,
            one.info.ne,
            one.source,
            one.kind,
            one.n_bytes,
            job.errors.get(one.name, TensorError()),
        )
        for one in job.plan.tensors
    ]
    title = f"{os.path.basename(job.file.path)} as {job.plan.title}"
    weighted = job.importances is not None
    notes, trades = list(job.warnings), list(job.trades)
    return Report(title, job.file.path, target, tensors, weighted, notes, trades)


def of_comparison(found: Comparison, names: tuple[str, str]) -> Report:
    """The report of two files."""
    title = f"{os.path.basename(names[1])} beside {os.path.basename(names[0])}"
    notes = [
        f"{what}: {', '.join(several)}"
        for what, several in (
            ("only in the first file", found.only_in_first),
            ("only in the second file", found.only_in_second),
            ("of another shape", found.other_shape),
        )
        if several
    ]
    return Report(title, *names, found.tensors, notes=notes)


def check_path(path: Path, inputs: Iterable[Path] = ()) -> str:
    """The form that the suffix asks for: json or html. UsageError for others, OutputError if
    nothing can be written there.
    """
    form = os.path.splitext(os.fspath(path))[1].lower()
    if form not in (".json", ".html", ".htm"):
        raise UsageError(f"{os.fspath(path)!r}: a report is a .json or a .html file")
    PendingFiles([(path, 0)], inputs=inputs)
    return "json" if form == ".json" else "html"


def write(
    report: Report, path: Path, *, inputs: Iterable[Path] = (), overwrite: bool = True
) -> None:
    """Write a report in the form that the suffix asks for."""
    if check_path(path) == "json":
        text = json.dumps(report.as_json(), indent=1, allow_nan=False)
    else:
        from llamapy.tasks.report_page import page

        text = page(report)
    content = text.encode("utf-8", "backslashreplace")
    with (
        PendingFiles([(path, len(content))], inputs=inputs, overwrite=overwrite) as pending,
        pending.open(0) as file,
    ):
        file.write(content)
