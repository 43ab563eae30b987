"""The One-Way Rule: import-linter's contracts hold here, and each breaks on the fault it is for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)

# contract -> (file to add, its text): what the contract must catch
FAULTS = {
    "one-way layers": ("llamapy/gguf/_fault.py", "from llamapy.quants import codec\n"),
    "only native touches numba": (
        "llamapy/backend/cpu/kernels/_fault.py",
        "def kernel():\n    import numba\n",
    ),
    "only the command line draws": ("llamapy/tasks/_fault.py", "import rich\n"),
    "builders never see a kernel": ("llamapy/nn/_fault.py", "from llamapy.backend import cpu\n"),
    "architectures do not know each other": (
        "llamapy/archs/_fault.py",
        "from llamapy.archs import llama\n",
    ),
    "commands do not know each other": (
        "llamapy/cli/commands/_fault.py",
        "from llamapy.cli.commands import _other\n",
    ),
    "kernels are reached through their device": (
        "llamapy/engine/_fault.py",
        "from llamapy.backend.cpu import kernels\n",
    ),
}


def lint(folder: Path) -> tuple[int, dict[str, str], str]:
    """Run lint-imports in `folder`: exit code, {contract: KEPT or BROKEN}, all output."""
    done = subprocess.run(
        [sys.executable, "-c", LINT],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "PATH": ""},
    )
    found = re.findall(r"^(.+) (KEPT|BROKEN)\b", done.stdout, re.MULTILINE)
    return done.returncode, dict(found), done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package with its contracts, to plant faults in."""
    skip = shutil.ignore_patterns("__pycache__", "*.npz", "*.npy")
    shutil.copytree(ROOT / "llamapy", tmp_path / "llamapy", ignore=skip)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold_and_each_has_a_planted_fault(copy: Path) -> None:
    status, contracts, output = lint(copy)
    assert status == 0, output
    assert set(contracts.values()) == {"KEPT"}
    assert set(contracts) == set(FAULTS)


def test_planted_faults_break_their_contracts(copy: Path) -> None:
    (copy / "llamapy/cli/commands/_other.py").write_text('"""Another command."""\n')
    for path, text in FAULTS.values():
        (copy / path).write_text(f'"""A fault."""\n{text}')
    status, contracts, output = lint(copy)
    assert status == 1
    assert [name for name, state in contracts.items() if state == "KEPT"] == [], output
    for path, _ in FAULTS.values():
        assert path.removesuffix(".py").replace("/", ".") in output


def test_a_package_without_a_place_is_refused(copy: Path) -> None:
    (copy / "llamapy" / "utils").mkdir()
    (copy / "llamapy" / "utils" / "__init__.py").write_text('"""Anything."""\n')
    status, _, output = lint(copy)
    assert status == 1
    assert "llamapy.utils" in output
