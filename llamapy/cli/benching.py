"""What `llamapy bench` shows: results on stdout as they come, everything else on stderr or in
files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from llamapy.cli import console
from llamapy.cli.kernels import compiling
from llamapy.core.errors import UsageError
from llamapy.engine.trace import Event
from llamapy.gguf.output import PendingFiles
from llamapy.runtime import sources
from llamapy.runtime.memory.kv import cache_type
from llamapy.tasks import bench, bench_output
from llamapy.tasks.bench import Case, Result
from llamapy.tasks.profile import Line, by_op, chrome
from llamapy.tasks.profile import profile as lines_of

MOST = 12  # lines of a profile; what is left is one more


def models(paths: list[Path] | None) -> list[str]:
    """The model files of -m, all of which must be there; else the default model."""
    with console.progress("fetching the model", unit="B") as tick:
        if not paths:
            return [str(sources.resolve(None, tick))]
        return [str(sources.resolve(path, tick)) for path in paths]


def cache_types(text: str) -> list[str]:
    return [cache_type(part.strip()) for part in text.split(",")]


def flash(text: str) -> list[int]:
    found = [part.strip().lower() for part in text.split(",")]
    for name in found:
        if name not in bench.FLASH:
            raise UsageError(f"flash attention is {name!r}, not on, off or auto")
    return [bench.FLASH[name] for name in found]


def show(
    wanted: Sequence[Case],
    output: str,
    *,
    reps: int,
    warmup: bool,
    progress: bool,
    profile: bool,
    trace: Path | None,
) -> None:
    """Measure and print."""
    form = bench_output.form(output, wanted)

    def note(i: int, total: int, doing: str) -> None:
        if progress:
            console.note(f"benchmark {i}/{total}: {wanted[i - 1].test}: {doing}")

    events: list[Event] = []
    _print(form.head())
    with compiling() as hook:
        for result in bench.run(
            wanted,
            reps=reps,
            warmup=warmup,
            traced=profile or trace is not None,
            note=note,
            on_compile=hook,
        ):
            _print(form.row(result))
            events += result.events
            if profile:
                _profile(result)
    _print(form.foot())
    if trace is not None:
        _write(trace, json.dumps(chrome(events, [case.test for case in wanted])))


def _print(text: str | None) -> None:
    if text is not None:
        print(text, flush=True)


def _profile(result: Result) -> None:
    """The table of one test, on stderr."""
    lines = lines_of(result.events)
    table = Table(title=f"{result.case.test}: time by op and type", title_justify="left", box=None)
    table.add_column("op")
    table.add_column("type")
    for name in ("times", "ms", "share"):
        table.add_column(name, justify="right")
    rest = lines[MOST:]
    shown = lines[:MOST]
    if rest:
        n, seconds = sum(line.times for line in rest), sum(line.seconds for line in rest)
        shown.append(Line("", "others", "", n, seconds, sum(line.share for line in rest)))
    for line in shown:
        ms = f"{1e3 * line.seconds:.2f}"
        table.add_row(line.op, line.kind, str(line.times), ms, f"{line.share:.1%}")
    console.err().print(table)
    share = by_op(lines)
    products = share.get("mul_mat", 0.0) + share.get("mul_mat_id", 0.0)
    console.err().print(f"matrix products: {products:.1%}")


def _write(path: Path, text: str) -> None:
    data = text.encode()
    with PendingFiles([(path, len(data))], overwrite=True) as pending, pending.open(0) as file:
        file.write(data)
