"""How `llamapy dump` looks: columns, widths and units. Decides nothing else."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from llamapy.cli import console
from llamapy.gguf.values import to_bytes
from llamapy.tasks.compare_files import Difference
from llamapy.tasks.inspect import Item, Report

_LEAST = 20  # columns that the last cell of a row gets, however wide the others are

_GAP = "  "

Row = tuple[str, ...]


def report(found: Report, *, tensors: bool, full: bool) -> None:
    """Print header, metadata, tensors with their hashes, and totals."""
    parts = f", {found.parts} parts" if found.parts > 1 else ""
    _line(found.path, "bold")
    _line(
        f"GGUF version {found.version}, {found.endian}-endian, alignment {found.alignment}, "
        f"{size(found.file_bytes)}{parts}\n"
    )
    rows: list[Row] = [(item.key, item.type, item.text) for item in found.metadata]
    title = f"{len(rows)} key-value pairs"
    _table(title, ("key", "type", "value"), rows if full else fitted(rows))
    if tensors and found.tensors:
        _tensors(found)
    _totals(found)


def _tensors(found: Report) -> None:
    _line("")
    _table(
        f"{len(found.tensors)} tensors",
        ("name", "type", "shape", "size", "offset"),
        [(t.name, t.type, shape(t.shape), size(t.n_bytes), str(t.offset)) for t in found.tensors],
        numbers=("size", "offset"),
    )
    if found.tensors[0].sha256:
        _line("\nSHA-256", "bold")
        for t in found.tensors:
            _line(f"{t.sha256}  {t.name}")


def _totals(found: Report) -> None:
    total = found.totals
    rows = [
        (
            name,
            f"{t.tensors:,}",
            f"{t.parameters:,}",
            size(t.n_bytes),
            f"{100 * t.n_bytes / total.n_bytes if total.n_bytes else 100:.1f} %",
            f"{8 * t.n_bytes / t.parameters if t.parameters else 0:.2f}",
        )
        for name, t in [*found.by_type.items(), ("all", total)]
    ]
    _line("")
    columns = ("type", "tensors", "parameters", "size", "share", "bits per weight")
    _table("totals", columns, rows, numbers=columns[1:])


def value(item: Item, *, as_json: bool) -> None:
    """Print one value: texts as they are, elements of an array a line each."""
    if as_json:
        console.json(item.value)
    elif isinstance(item.value, str):
        _text(item.value)
    elif item.elements is None:
        _line(item.text)
    else:
        for element in item.elements:
            _line(element)
        if len(item.elements) < item.count:
            console.note(f"{item.count - len(item.elements)} elements more: --full shows all")


def _text(text: str) -> None:
    """A text byte by byte to a file or pipe; to a terminal without what could drive it."""
    if sys.stdout.isatty():
        for line in text.splitlines():
            _line(line)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(to_bytes(text))


def differences(found: Mapping[str, Sequence[Difference]], names: tuple[str, str]) -> None:
    """Print what differs between two files, kind by kind."""
    _line(f"a: {names[0]}\nb: {names[1]}")
    for kind, several in found.items():
        _line("")
        rows: list[Row] = [(d.name, d.a, d.b) for d in several]
        if rows:
            _table(f"{kind}: {len(rows)} differ", ("name", "a", "b"), fitted(rows, 2))
        else:
            _line(f"{kind}: equal")


def fitted(rows: Sequence[Row], last: int = 1) -> list[Row]:
    """Rows whose last cells are cut, so that a row is one line of the terminal."""
    if not rows:
        return []
    n_fixed = len(rows[0]) - last
    fixed = sum(max(cell_len(row[i]) for row in rows) for i in range(n_fixed))
    room = (console.out().width - fixed - len(_GAP) * (len(rows[0]) - 1)) // last
    return [
        (*row[:n_fixed], *(_cut(text, max(room, _LEAST)) for text in row[n_fixed:])) for row in rows
    ]


def _cut(text: str, room: int) -> str:
    text = console.printable(text)
    wide = Text(text)
    wide.truncate(room, overflow="ellipsis")
    return wide.plain


def size(n_bytes: int) -> str:
    """Bytes for people: 18 B, 1.5 KiB, 240.1 MiB."""
    if n_bytes < 1024:
        return f"{n_bytes} B"
    amount = float(n_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:,.1f} {unit}"


def shape(sizes: Sequence[int]) -> str:
    """Sizes for people, innermost first."""
    return " x ".join(map(str, sizes)) or "1"


def _table(title: str, columns: Row, rows: Sequence[Row], numbers: Sequence[str] = ()) -> None:
    """Print aligned columns; what is too wide is left to rich, which is slower but folds."""
    cells = [tuple(console.printable(cell) for cell in row) for row in rows]
    widths = [max(cell_len(row[i]) for row in [columns, *cells]) for i in range(len(columns))]
    right = [name in numbers for name in columns]
    _line(title, "bold")
    if sum(widths) + len(_GAP) * (len(widths) - 1) > console.out().width:
        _folded(columns, cells, right)
        return
    _line(_aligned(columns, widths, right), "bold")
    _line("\n".join(_aligned(row, widths, right) for row in cells))


def _folded(columns: Row, cells: Sequence[Row], right: Sequence[bool]) -> None:
    grid = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for name, flush in zip(columns, right):
        grid.add_column(name, justify="right" if flush else "left", overflow="fold")
    for row in cells:
        grid.add_row(*map(Text, row))
    console.out().print(grid)


def _aligned(row: Row, widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        " " * (width - cell_len(cell)) + cell if flush else cell + " " * (width - cell_len(cell))
        for cell, width, flush in zip(row, widths, right)
    )
    return _GAP.join(padded).rstrip()


def _line(text: str, style: str = "") -> None:
    shown = "\n".join(console.printable(line) for line in text.split("\n"))
    console.out().print(Text(shown, style=style), soft_wrap=True)
