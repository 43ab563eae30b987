"""How commands speak: data to stdout, talk to stderr. Knows rich, and does without it as long as
lines are all there is to write (it takes 60 ms to be loaded); knows no command.

Texts are never read as markup, and control characters that a file may carry are shown, not sent
to the terminal. Away from a terminal lines are not cut to a width.
"""

from __future__ import annotations

import dataclasses
import json as _json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console

Tick = Callable[..., None]
"""Called as `tick(done)`, `tick(done, total)` or `tick(done, total, description)`."""


def out() -> Console:
    """rich's console of stdout."""
    from llamapy.cli import drawing

    return drawing.console(stderr=False)


def err() -> Console:
    """rich's console of stderr."""
    from llamapy.cli import drawing

    return drawing.console(stderr=True)


def at_terminal() -> bool:
    """Whether stderr is a terminal, or to be treated as one."""
    return not _plain_lines(sys.stderr) and err().is_terminal


def _plain_lines(stream: TextIO | None) -> bool:
    """Whether lines go to the stream without colours for sure: it is no terminal, and nothing tells
    rich to treat it as one."""
    forced = "FORCE_COLOR" in os.environ or "TTY_COMPATIBLE" in os.environ
    return stream is not None and not forced and not stream.closed and not stream.isatty()


def note(text: str) -> None:
    """Tell the user something on stderr."""
    _tell("", _lines(text), style="dim")


def warn(text: str) -> None:
    """Warn the user on stderr."""
    _tell("warning: ", _lines(text))


def _tell(head: str, text: str, style: str = "") -> None:
    if _plain_lines(sys.stderr):
        print(head + text, file=sys.stderr)
        return
    from rich.text import Text

    err().print(Text.assemble((head, "yellow"), (text, style)), soft_wrap=True)


def json(obj: object) -> None:
    """Print `obj` to stdout as one strict JSON value: indented on a terminal, else on one line.

    What JSON lacks becomes text: NaN and infinities as "NaN", "Infinity", "-Infinity", bytes as
    UTF-8 with backslash escapes for the rest. Dataclasses, arrays, paths and enums are taken apart.
    """
    ascii_only = (sys.stdout.encoding or "ascii").lower().replace("-", "") != "utf8"
    indent = 2 if sys.stdout.isatty() else None
    plain = _plain(obj)
    print(_json.dumps(plain, ensure_ascii=ascii_only, allow_nan=False, indent=indent))


def _plain(obj: Any) -> Any:
    """`obj` in dicts, lists, texts, numbers, booleans and None only."""
    if obj is None or obj is True or obj is False:
        return obj
    if isinstance(obj, Enum):
        return _plain(obj.value)
    if isinstance(obj, str):
        return obj.encode("utf-8", "backslashreplace").decode()  # a lone surrogate is no UTF-8
    if isinstance(obj, int):
        return int(obj)
    if isinstance(obj, float):
        return _float(float(obj))
    if isinstance(obj, bytes | bytearray | memoryview):
        return bytes(obj).decode("utf-8", "backslashreplace")
    if isinstance(obj, PurePath):
        return _plain(str(obj))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return {f.name: _plain(getattr(obj, f.name)) for f in dataclasses.fields(obj)}
    if isinstance(obj, Mapping):
        return {_key(key): _plain(value) for key, value in obj.items()}
    if hasattr(obj, "tolist"):  # numpy arrays and scalars, without importing numpy
        return _plain(obj.tolist())
    if isinstance(obj, Set):
        return sorted((_plain(item) for item in obj), key=str)
    if isinstance(obj, Iterable):
        return [_plain(item) for item in obj]
    raise TypeError(f"{type(obj).__name__} has no JSON form")


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _key(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else _json.dumps(plain)


def printable(text: str) -> str:
    """`text` with its control characters as escapes, so that a file cannot drive a terminal."""
    return text if text.isprintable() else "".join(map(_shown, text))


def _shown(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.splitlines())


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Sequence[str] = (),
) -> None:
    """Print a table to stdout. `numbers` names the columns that are set flush right."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(title=title or None, title_justify="left", title_style="bold", box=None)
    for name in columns:
        grid.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(printable(str(cell))) for cell in row))
    out().print(grid)


@contextmanager
def progress(description: str, total: float | None = None, unit: str = "") -> Iterator[Tick]:
    """A progress bar on stderr that lives as long as the `with`; nothing when that is no terminal.

    Gives a function to call with the amount done, and with the total when it was not known before.
    `unit` "B" shows sizes and speed in bytes; another is shown after the count.
    """
    if not at_terminal():
        yield lambda done, total=None, description=None: None
        return
    from rich import progress as rich_progress

    counts: list[rich_progress.ProgressColumn]
    if unit == "B":
        counts = [rich_progress.DownloadColumn(), rich_progress.TransferSpeedColumn()]
    else:
        counts = [rich_progress.MofNCompleteColumn(), rich_progress.TextColumn(unit)]
    bar = rich_progress.Progress(
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        *counts,
        rich_progress.TimeRemainingColumn(),
        console=err(),
        transient=True,
        redirect_stdout=False,  # data goes out byte for byte, also while a bar is shown
    )
    task = bar.add_task(description, total=total)

    def tick(done: float, total: float | None = None, description: str | None = None) -> None:
        bar.start()  # the first time: work that proves needless shows no bar
        if done < bar.tasks[task].completed:
            bar.reset(task)  # another pass over the same: it has its own speed
        shown = None if description is None else printable(description)
        bar.update(task, completed=done, total=total, description=shown)
        if total is not None and done >= total:
            bar.stop()  # and starts anew if there proves to be more

    try:
        yield tick
    finally:
        bar.stop()
