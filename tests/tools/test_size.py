"""The size tool: what it counts, and that a stop is a stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import size

ROOT = Path(__file__).parent.parent.parent
LONG = "def long():\n" + "    x = 1\n" * 80
SOURCE = '''"""A module."""
TABLE = [
    1,
    2,
    3,
    4,
    5,
    6,
]


class Thing:
    @property
    def name(self):
        """Its name."""
        def inner():
            return 1
        return inner()
'''


def test_lines_of_tables_do_not_count_and_decorators_do() -> None:
    file = size.measure("llamapy/quants/x.py", SOURCE)
    assert file.lines == len(SOURCE.splitlines()) - 8
    assert {g.place.partition(":")[2]: g.lines for g in file.functions} == {
        "Thing.name": 6,
        "Thing.name.inner": 2,
    }
    short = size.measure("llamapy/quants/x.py", SOURCE.replace("    6,\n", ""))
    assert short.lines == len(SOURCE.splitlines()) - 1


@pytest.mark.parametrize(
    ("path", "package", "stop"),
    [
        ("llamapy/__init__.py", "llamapy", 400),
        ("llamapy/backend/cpu/kernels/add.py", "llamapy/backend", 400),
        ("llamapy/archs/llama.py", "llamapy/archs", 120),
        ("llamapy/cli/commands/run.py", "llamapy/cli", 120),
        ("tests/gguf/test_reader.py", "tests", 400),
    ],
)
def test_each_file_has_its_package_and_stop(path: str, package: str, stop: int) -> None:
    file = size.measure(path, "")
    assert (file.package, file.stop) == (package, stop)


def test_what_passes_a_stop_is_named_unless_allowed() -> None:
    files = [size.measure("tools/a.py", LONG), size.measure("tools/b.py", "x = 1\n" * 401)]
    assert size.over(files, {}) == [
        "tools/b.py: 401 lines, the stop is 400",
        "tools/a.py:long: 81 lines, the stop is 80",
    ]
    assert size.over(files, {"tools/b.py": "why", "tools/a.py:long": "why"}) == []
    stale = {"tools/b.py": "why", "tools/a.py:long": "why", "tools/a.py": "why", "gone.py": "why"}
    assert size.over(files, stale) == [
        "tools/a.py: needs no exception any more",
        "gone.py: needs no exception any more",
    ]


def test_rows_add_up_and_show_the_change() -> None:
    files = [size.measure("tools/a.py", LONG), size.measure("tests/b.py", "x = 1\n")]
    before = [size.measure("tools/a.py", "x = 1\n"), size.measure("llamapy/nn/c.py", "x = 1\n")]
    found = {row.package: (row.files, row.lines, row.change) for row in size.rows(files, before)}
    assert found == {
        "tools": (1, 81, 80),
        "tests": (1, 1, 1),
        "llamapy/nn": (0, 0, -1),
        "all": (2, 82, 80),
    }
    assert [row.change for row in size.rows(files, None)] == [None] * 3


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_the_program_compares_with_git_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "pyproject.toml").write_text("[tool.x]\n")
    program = tmp_path / "tools" / "size.py"
    program.write_bytes((ROOT / "tools" / "size.py").read_bytes())

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), *arguments]
        return subprocess.run(command, check=False, capture_output=True, text=True)

    assert run().returncode == 0  # no repository: sizes alone
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    (tmp_path / "tools" / "long.py").write_text(LONG)
    done = run("--json")
    assert done.returncode == 1
    assert done.stderr == "tools/long.py:long: 81 lines, the stop is 80\n"
    found = json.loads(done.stdout)
    assert (found["since"], found["over"]) == ("HEAD", [done.stderr.strip()])
    assert found["rows"][-1]["change"] == 81
    assert "+81" in run("--since", "HEAD").stdout
    assert run("--since", "nonsense").returncode == 2
