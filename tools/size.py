"""How big files and functions are, by package, against the limits of docs/development.md.

    python tools/size.py [--since REVISION] [--json]

Exit code 1 when a stop is passed. Lines of data tables (literals of a module or class, from eight
lines up) do not count. An exception is an entry of [tool.llamapy.size.allow] in pyproject.toml:
`"path" = "reason"` for a file, `"path:function" = "reason"` for a function.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import subprocess
import sys
import tarfile
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("llamapy", "tools", "tests")
FILE_STOP, FUNCTION_STOP, SMALL_FILE_STOP = 400, 80, 120
SMALL_FOLDERS = ("llamapy/archs/", "llamapy/cli/commands/")  # one file, one thing
TABLE_LINES = 8
LITERALS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Constant)


@dataclass(frozen=True)
class Function:
    """A function: its place (`path:Class.name`), its lines with decorators and docstring."""

    place: str
    lines: int


@dataclass(frozen=True)
class File:
    """A file: its lines without those of data tables, and its functions."""

    path: str
    lines: int
    functions: tuple[Function, ...]

    @property
    def package(self) -> str:
        """`llamapy/quants` for `llamapy/quants/q4_0.py`; files of a top folder are that folder."""
        parts = self.path.split("/")
        return "/".join(parts[: 2 if parts[0] == "llamapy" and len(parts) > 2 else 1])

    @property
    def stop(self) -> int:
        """The most lines that this file may have."""
        small = self.path.startswith(SMALL_FOLDERS) and not self.path.endswith("__init__.py")
        return SMALL_FILE_STOP if small else FILE_STOP


def measure(path: str, source: str) -> File:
    """Count the lines of one file and of each of its functions."""
    tree = ast.parse(source)
    tables = sum(_table_lines(node) for node in ast.walk(tree) if hasattr(node, "body"))
    return File(path, len(source.splitlines()) - tables, tuple(_functions(tree, f"{path}:")))


def _table_lines(scope: ast.AST) -> int:
    """Lines of the large literals that are assigned directly in a module or class."""
    if not isinstance(scope, ast.Module | ast.ClassDef):
        return 0
    values = [n.value for n in scope.body if isinstance(n, ast.Assign | ast.AnnAssign) and n.value]
    spans = [
        v.end_lineno - v.lineno + 1 for v in values if isinstance(v, LITERALS) and v.end_lineno
    ]
    return sum(lines for lines in spans if lines >= TABLE_LINES)


def _functions(scope: ast.AST, prefix: str) -> Iterator[Function]:
    for node in ast.iter_child_nodes(scope):
        name = getattr(node, "name", "") if isinstance(node, ast.stmt) else ""
        place = f"{prefix}{name}"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield Function(place, node.end_lineno - first + 1)
        yield from _functions(node, f"{place}." if name else prefix)


def files_here(root: Path = ROOT) -> list[File]:
    """The measured files of the working tree."""
    paths = sorted(p for folder in FOLDERS for p in (root / folder).rglob("*.py"))
    return [measure(p.relative_to(root).as_posix(), p.read_text(encoding="utf-8")) for p in paths]


def files_at(revision: str, root: Path = ROOT) -> list[File]:
    """The measured files of a git revision; those that do not parse are left out."""
    command = ["git", "-C", str(root), "archive", "--format=tar", revision]
    done = subprocess.run(command, capture_output=True, check=True)
    found = []
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        for member in tar:
            data = tar.extractfile(member) if member.name.endswith(".py") else None
            if data and member.name.startswith(tuple(f"{f}/" for f in FOLDERS)):
                try:
                    found.append(measure(member.name, data.read().decode()))
                except SyntaxError:
                    continue
    return found


def default_revision(root: Path = ROOT) -> str:
    """`origin/main` where there is one, else HEAD."""
    command = ["git", "-C", str(root), "rev-parse", "--verify", "--quiet", "origin/main"]
    known = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return "origin/main" if known else "HEAD"


def allowed(root: Path = ROOT) -> dict[str, str]:
    """The exceptions of pyproject.toml, place -> reason."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    table: dict[str, str] = config["tool"].get("llamapy", {}).get("size", {}).get("allow", {})
    return table


def over(files: list[File], exceptions: dict[str, str]) -> list[str]:
    """A line for each file or function that passes its stop, and for each useless exception."""
    lines: dict[str, tuple[int, int]] = {f.path: (f.lines, f.stop) for f in files}
    lines |= {g.place: (g.lines, FUNCTION_STOP) for f in files for g in f.functions}
    faults = [
        f"{place}: {n} lines, the stop is {stop}"
        for place, (n, stop) in lines.items()
        if n > stop and place not in exceptions
    ]
    needless = [p for p in exceptions if p not in lines or lines[p][0] <= lines[p][1]]
    return faults + [f"{place}: needs no exception any more" for place in needless]


@dataclass(frozen=True)
class Row:
    """A package in the table; `change` counts lines, None without a revision to compare with."""

    package: str
    files: int
    lines: int
    change: int | None
    file_median: int
    file_max: int
    functions: int
    function_median: int
    function_p90: int
    function_max: int


def rows(files: list[File], before: list[File] | None) -> list[Row]:
    """One row a package, and one for all."""
    groups: dict[str, list[File]] = defaultdict(list)
    for file in files:
        groups[file.package].append(file)
    earlier: dict[str, int] = defaultdict(int)
    for file in before or []:
        earlier[file.package] += file.lines
    table = [_row(name, groups.get(name, []), earlier[name]) for name in {**groups, **earlier}]
    table = sorted(table, key=lambda row: row.package)
    table.append(_row("all", files, sum(earlier.values())))
    return table if before is not None else [Row(**asdict(r) | {"change": None}) for r in table]


def _row(package: str, files: list[File], lines_before: int) -> Row:
    sizes = [f.lines for f in files] or [0]
    functions = sorted(g.lines for f in files for g in f.functions) or [0]
    return Row(
        package=package,
        files=len(files),
        lines=sum(sizes),
        change=sum(sizes) - lines_before,
        file_median=int(statistics.median(sizes)),
        file_max=max(sizes),
        functions=sum(len(f.functions) for f in files),
        function_median=int(statistics.median(functions)),
        function_p90=functions[int(0.9 * (len(functions) - 1))],
        function_max=functions[-1],
    )


def show(table: list[Row], since: str) -> None:
    """Print the table; the change is since the revision `since`."""
    heads = f"{'':<24}{'files':>6}{'lines':>8}{'change':>8}"
    print(f"{heads}{'file':>12}{'functions':>11}{'function':>16}")
    print(f"{'':<24}{'':>22}{'med  max':>12}{'':>11}{'med  p90  max':>16}")
    for r in table:
        change = "" if r.change is None else f"{r.change:+d}" if r.change else "."
        print(
            f"{r.package:<24}{r.files:>6}{r.lines:>8}{change:>8}{r.file_median:>7}{r.file_max:>5}"
            f"{r.functions:>11}{r.function_median:>6}{r.function_p90:>5}{r.function_max:>5}"
        )
    if since:
        print(f"The change is since {since}; lines of data tables do not count.")


def main() -> None:
    """Print the table and what passes a stop."""
    parser = argparse.ArgumentParser(description="Sizes of files and functions.")
    parser.add_argument("--since", metavar="REVISION", help="compare with (origin/main or HEAD)")
    parser.add_argument("--json", action="store_true", help="the same as data")
    a = parser.parse_args()
    since = a.since or default_revision()
    try:
        before: list[File] | None = files_at(since)
    except (OSError, subprocess.CalledProcessError):
        if a.since:
            parser.error(f"git knows no revision {a.since!r}")
        before = None  # no git here: the sizes alone
    files = files_here()
    table, faults = rows(files, before), over(files, allowed())
    if a.json:
        print(json.dumps({"since": since, "rows": [asdict(r) for r in table], "over": faults}))
    else:
        show(table, since if before is not None else "")
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
