"""How `llamapy quantize` looks at the end: types, shares, bits per weight, fallbacks, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llamapy.cli import console, listing
from llamapy.core.errors import UsageError
from llamapy.tasks import budget, quantize, report
from llamapy.tasks.quantize import Job
from llamapy.tasks.quantize_summary import Summary, summarize, tensor_json


@dataclass(frozen=True)
class Size:
    """A size that the user asks for instead of a file type; zeros for none."""

    bits_per_weight: float = 0.0
    n_bytes: int = 0

    @classmethod
    def of(cls, target_bpw: float, target_size: str, file_type: str) -> Size:
        """From the options; at most one of the three may be given."""
        if bool(target_bpw) + bool(target_size) + bool(file_type) > 1:
            raise UsageError("--target-bpw, --target-size and a file type do not go together")
        return cls(target_bpw, budget.parse_size(target_size) if target_size else 0)

    @property
    def base(self) -> str:
        """A file type that says which tensors may change at all; empty without a size."""
        return "Q4_K_M" if self.bits_per_weight or self.n_bytes else ""

    def fit(self, job: Job) -> None:
        """Choose the types of the job for this size."""
        if not self.base:
            return
        with console.progress("measuring") as tick:
            quantize.fit(
                job,
                bits_per_weight=self.bits_per_weight,
                n_bytes=self.n_bytes,
                on_progress=lambda name, done, total: tick(done, total, name),
            )


def carry_out(job: Job, target: str, report_path: Path | None, *, as_json: bool) -> None:
    """Quantize, and say what came of it."""
    if report_path is not None:
        report.check_path(report_path, inputs=[job.file.path, target])
    total = sum(one.info.n_bytes for one in job.plan.tensors)
    with console.progress("quantizing", total, unit="B") as tick:
        paths = quantize.run(
            job,
            target,
            on_progress=lambda name, done, total: tick(done, total, name),
            measure=report_path is not None,
        )
    if report_path is not None:
        report.write(report.of_job(job, target), report_path)
        paths = [*paths, str(report_path)]
    show(job, paths, as_json=as_json)


def show(job: Job, paths: Sequence[str], *, as_json: bool) -> None:
    """Print what a job makes or has made, and warnings to stderr."""
    summary = summarize(job.plan)
    for text in job.warnings:
        console.warn(text)
    if as_json:
        tensors = [tensor_json(one) for one in job.plan.tensors]
        found = {"file_type": job.plan.file_type.name, "written": paths, "tensors": tensors}
        console.json(found | summary.as_json() | {"warnings": job.warnings})
        return
    _table(summary)
    for path in paths:
        console.note(f"written: {path}")


def _table(summary: Summary) -> None:
    rows: list[tuple[str, ...]] = [
        (
            one.kind,
            f"{one.tensors:,}",
            f"{one.parameters:,}",
            f"{100 * one.share:.1f} %",
            listing.size(one.n_bytes),
            f"{one.bits_per_weight:.3f}",
        )
        for one in [*summary.types, summary.total]
    ]
    columns = ("type", "tensors", "parameters", "share", "size", "bits per weight")
    console.table(summary.title, columns, rows, numbers=columns[1:])
    asked, got = summary.bits_asked, summary.total.bits_per_weight
    console.out().print(
        f"asked {asked:.3f} got {got:.3f} bits per weight, "
        f"{listing.size(summary.n_bytes_before)} -> {listing.size(summary.total.n_bytes)}"
    )
    if summary.fallbacks:
        _fallbacks(summary)


def _fallbacks(summary: Summary) -> None:
    share = 100 * summary.fallback_share
    console.out().print(
        f"{len(summary.fallbacks)} of {summary.total.tensors} tensors ({share:.1f} % of the"
        " parameters) have another type than asked:"
    )
    groups: dict[str, list[str]] = {}
    for one in summary.fallbacks:
        groups.setdefault(f"{one.asked} -> {one.kind}: {one.reason}", []).append(one.name)
    for text, names in groups.items():
        more = f", and {len(names) - 1} more" if len(names) > 1 else ""
        shown = console.printable(f"  {text} ({names[0]}{more})")
        console.out().print(shown, soft_wrap=True)
