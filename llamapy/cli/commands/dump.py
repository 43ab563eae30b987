"""llamapy dump: what is in a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Exit, Option

from llamapy.cli import console
from llamapy.cli.options import GgufFile, Json
from llamapy.core.errors import UsageError

if TYPE_CHECKING:
    from llamapy.tasks.inspect import AnyFile

Tensors = Annotated[bool, Option("--tensors/--no-tensors", help="List the tensors.")]
Kv = Annotated[str, Option("--kv", metavar="KEY", help="Print the value of one key.")]
Full = Annotated[bool, Option("--full", help="Show long arrays and texts whole.")]
Hash = Annotated[bool, Option("--hash", help="Add the SHA-256 of every tensor.")]
Other = Annotated[
    Path | None,
    Option("--diff", metavar="OTHER", help="Show what differs; then the exit status is 1."),
]
Alone = Annotated[bool, Option("--alone", help="Look at one part of a set, not at all of it.")]

_WARNINGS = 20  # how many are printed


def main(
    file: GgufFile,
    json: Json = False,
    tensors: Tensors = True,
    kv: Kv = "",
    full: Full = False,
    hashed: Hash = False,
    diff: Other = None,
    alone: Alone = False,
) -> None:
    """Show metadata and tensors of a GGUF file, or how two files differ."""
    from llamapy.cli import listing
    from llamapy.tasks import inspect

    if bool(kv) + bool(diff) + hashed > 1 or (hashed and not tensors):
        raise UsageError("--kv, --diff, --hash and --no-tensors do not go together")
    with inspect.open_lenient(file, alone=alone) as opened:
        if kv:
            listing.value(inspect.find(opened, kv, full=full), as_json=json)
        elif diff:
            with inspect.open_lenient(diff, alone=alone) as other:
                _diff(opened, other, as_json=json, tensors=tensors)
        else:
            _report(opened, as_json=json, tensors=tensors, full=full, hashed=hashed)


def _report(file: AnyFile, *, as_json: bool, tensors: bool, full: bool, hashed: bool) -> None:
    from llamapy.cli import listing
    from llamapy.tasks import inspect
    from llamapy.tasks.model_checks import doubts

    digests = None
    if hashed:
        total = sum(info.n_bytes for info in file.tensors)
        with console.progress("hashing", total, unit="B") as tick:
            digests = inspect.hash_tensors(file, tick)
    report = inspect.inspect(file, full=full, hashes=digests)
    warnings = doubts(file)
    if as_json:
        found = report.as_json(tensors=tensors)
        console.json(found | ({"warnings": warnings} if warnings else {}))
    else:
        listing.report(report, tensors=tensors, full=full)
    for text in warnings[:_WARNINGS]:
        console.warn(f"{file.path}: {text}")
    if len(warnings) > _WARNINGS:
        console.warn(f"{file.path}: {len(warnings) - _WARNINGS} warnings more")
    if warnings:
        raise Exit(1)


def _diff(a: AnyFile, b: AnyFile, *, as_json: bool, tensors: bool) -> None:
    from llamapy.cli import listing
    from llamapy.tasks.compare_files import compare_metadata, compare_tensors

    found = {"metadata": compare_metadata(a.metadata, b.metadata)}
    if tensors:
        total = sum(info.n_bytes for info in a.tensors)
        with console.progress("comparing", total, unit="B") as tick:
            found["tensors"] = compare_tensors(a, b, tick)
    if as_json:
        console.json(found)
    else:
        listing.differences(found, (a.path, b.path))
    if any(found.values()):
        raise Exit(1)
