"""What `llamapy perplexity` shows: running figures on stderr, results on stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llamapy.cli import console, divergence_text
from llamapy.core.errors import LlamapyError, UsageError
from llamapy.gguf.output import PendingFiles
from llamapy.runtime.model import Model
from llamapy.tasks import choices, divergence, plot_png
from llamapy.tasks import perplexity as task
from llamapy.tasks.choices import Outcome, Score
from llamapy.tasks.divergence import Divergence
from llamapy.tasks.logits_file import open_logits
from llamapy.tasks.perplexity import Chunk, OnChunk, Perplexity


def texts(positional: list[Path] | None, option: list[Path] | None) -> list[Path]:
    """The text files of a command line, in its order."""
    files = [*(option or []), *(positional or [])]
    if not files:
        raise UsageError("a text is missing", hint="-f FILE")
    return files


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise LlamapyError(f"{file}: cannot be read: {error.strerror}") from None


@contextmanager
def running(what: str) -> Iterator[OnChunk]:
    """A bar that counts chunks and shows the running perplexity."""
    with console.progress(what, unit="chunks") as tick:

        def on_chunk(chunk: Chunk, total: int) -> None:
            tick(chunk.number, total, f"{what}: PPL {chunk.running:.4f}")

        yield on_chunk


def perplexity(
    model: Model, files: list[Path], *, as_json: bool, per_byte: bool, **options: Any
) -> None:
    """Measure each file and print its figures, and for several their macro average."""
    found: list[Perplexity] = []
    for file in files:
        text = read(file)
        try:
            with running(file.name) as on_chunk:
                found.append(task.perplexity(model, text, on_chunk=on_chunk, **options))
        except LlamapyError as error:
            if len(files) == 1:
                raise
            raise LlamapyError(f"{file}: {error.message}", hint=error.hint) from None
        if not as_json:
            _say(found[-1], file if len(files) > 1 else None, per_byte=per_byte)
    average = task.macro_average(found)
    if as_json:
        parts = [{"file": f} | as_dict(one) for f, one in zip(files, found)]
        console.json(parts[0] if len(parts) == 1 else {"files": parts, "macro_average": average})
    elif len(found) > 1:
        console.out().print(f"Macro average: PPL = {average:.4f}")


def save_logits(
    model: Model, files: list[Path], path: Path, *, as_json: bool, **options: Any
) -> None:
    """Measure one text and keep the model's log-probabilities."""
    if len(files) != 1:
        raise UsageError("--save-logits takes one text")
    with running(files[0].name) as on_chunk:
        found = divergence.save_logits(model, read(files[0]), path, on_chunk=on_chunk, **options)
    if as_json:
        console.json({"file": files[0], "logits": path} | as_dict(found))
    else:
        _say(found, None, per_byte=False)


def diverge(model: Model, base: Path, *, as_json: bool, **options: Any) -> None:
    """Compare with the log-probabilities in a file."""
    opened = open_logits(base)
    if not as_json:
        console.out().print(divergence_text.HEAD)
    with console.progress("divergence", unit="chunks") as tick:

        def on_chunk(chunk: Chunk, total: int, found: Divergence) -> None:
            kld = found.mean_kld.value
            tick(chunk.number, total, f"PPL {chunk.running:.4f}, KLD {kld:.6f}")
            if not as_json:
                console.out().print(divergence_text.chunk_row(chunk.number, found))

        found = divergence.diverge(model, opened, on_chunk=on_chunk, **options)
    if as_json:
        console.json(found.as_dict())
    else:
        console.out().print()
        for line in divergence_text.lines(found):
            console.out().print(line)


def compare(
    models: list[Model], files: list[Path], plot: Path | None, *, as_json: bool, **options: Any
) -> None:
    """Measure models against the first and print a table."""
    from llamapy.tasks.compare_quants import compare as measure

    if plot is not None and plot.suffix not in (".png", ".svg", ".html"):
        raise UsageError(f"{plot}: a plot is .png, .svg or .html")
    if plot is not None and plot.suffix == ".png":
        plot_png.available()  # before the work, not after it
    text = b"".join(read(file) for file in files)
    with console.progress("comparing", unit="chunks") as tick:
        found = measure(models, text, on_chunk=tick, **options)
    rows = [divergence_text.row(one) for one in found]
    if as_json:
        console.json([one.as_dict() for one in found])
    else:
        columns = divergence_text.COLUMNS
        console.table("", columns, rows, numbers=columns[1:])
    if plot is not None:
        data = divergence_text.picture(found, plot.suffix)
        with PendingFiles([(plot, len(data))], overwrite=True) as pending, pending.open(0) as file:
            file.write(data)


def choose(model: Model, files: dict[str, Path], n: int, *, as_json: bool, **options: Any) -> None:
    """Score tests of choice: {"hellaswag": file, ...}."""
    found = {}
    for kind, path in files.items():
        tasks = getattr(choices, kind)(read(path), *([n] if n else []))
        with console.progress(kind, len(tasks), unit="tasks") as tick:

            def on_task(_: Outcome, so_far: Score, tick: console.Tick = tick) -> None:
                tick(so_far.n)

            found[kind] = choices.score(model, tasks, on_task=on_task, **options)
    if as_json:
        console.json({kind: asdict(s) | {"accuracy": s.accuracy} for kind, s in found.items()})
        return
    for kind, s in found.items():
        low, high = s.interval
        console.out().print(
            f"{kind}: {100 * s.accuracy:.4f}% +/- {100 * s.error:.4f}"
            f"  [{100 * low:.4f}%, {100 * high:.4f}%]  of {s.n} tasks;"
            f" random chance {100 * s.chance:.2f}%"
        )


def as_dict(one: Perplexity) -> dict[str, Any]:
    return {
        "ppl": one.ppl,
        "ppl_err": one.ppl_err,
        "n_chunks": one.n_chunks,
        "n_tokens": one.n_tokens,
        "n_bytes": one.n_bytes,
        "bits_per_byte": one.bits_per_byte,
        "ppl_per_byte": one.per_byte,
        "seconds": one.seconds,
        "chunks": [asdict(chunk) for chunk in one.chunks],
    }


def _say(one: Perplexity, file: Path | None, *, per_byte: bool) -> None:
    error = f" +/- {one.ppl_err:.5f}" if one.ppl_err else ""
    name = f"{file}: " if file else ""
    console.out().print(f"{name}Final estimate: PPL = {one.ppl:.4f}{error}")
    if per_byte:
        console.out().print(
            f"{name}per byte: PPL = {one.per_byte:.5f}, {one.bits_per_byte:.5f} bits"
            f" ({one.n_bytes} bytes in {one.n_tokens} tokens)"
        )
