"""What the names of kept machine code are made of."""

from __future__ import annotations

import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

from llamapy.native import store


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy"])
def test_versions_are_those_of_the_metadata(package: str) -> None:
    assert store.installed(package) == version(package)


@pytest.mark.parametrize("notes", [[], ["1.0", "2.0"]])
def test_without_one_clear_note_the_metadata_are_asked(
    notes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "oddly").mkdir()
    (tmp_path / "oddly" / "__init__.py").touch()
    for note in notes:
        (tmp_path / f"oddly-{note}.dist-info").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: f"asked for {name}")
    assert store.installed("oddly") == "asked for oddly"
