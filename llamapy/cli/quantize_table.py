"""How `llamapy quantize` looks at the end: types, shares, bits per weight, fallbacks, warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llamapy.cli import console, listing
from llamapy.tasks import quantize
from llamapy.tasks.quantize import Job
from llamapy.tasks.quantize_summary import Summary, summarize, tensor_json

_REASONS = 8  # fallbacks that are listed


def carry_out(job: Job, target: str, *, dry_run: bool, as_json: bool) -> None:
    """Do the job, or not, and say what came of it."""
    summary = summarize(job.plan)
    paths: list[str] = []
    if not dry_run:
        total = sum(one.info.n_bytes for one in job.plan.tensors)
        with console.progress("quantizing", total, unit="B") as tick:
            paths = quantize.run(
                job, target, on_progress=lambda name, done, total: tick(done, total, name)
            )
    for text in job.warnings:
        console.warn(text)
    if as_json:
        tensors = [tensor_json(one) for one in job.plan.tensors]
        found = {"file_type": job.plan.file_type.name, "output": paths, "tensors": tensors}
        console.json(found | summary.as_json() | {"warnings": job.warnings})
        return
    show(summary)
    for path in paths:
        console.note(f"written: {path}")


def show(summary: Summary) -> None:
    """Print the table to stdout."""
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
    console.out.print(
        f"asked {asked:.3f} got {got:.3f} bits per weight, "
        f"{listing.size(summary.n_bytes_before)} -> {listing.size(summary.total.n_bytes)}"
    )
    if summary.fallbacks:
        _fallbacks(summary)


def _fallbacks(summary: Summary) -> None:
    found: Sequence[Any] = summary.fallbacks
    share = 100 * summary.fallback_share
    console.out.print(
        f"{len(found)} of {summary.total.tensors} tensors ({share:.1f} % of the parameters)"
        " have another type than asked:"
    )
    for one in found[:_REASONS]:
        text = f"  {one.name}: {one.asked} -> {one.kind}, {one.reason}"
        console.out.print(console.printable(text), soft_wrap=True)
    if len(found) > _REASONS:
        console.out.print(f"  and {len(found) - _REASONS} more")
