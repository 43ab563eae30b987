"""The tiny models are what MANIFEST.toml says."""

from __future__ import annotations

import hashlib
import tomllib
from pathlib import Path

import make_tiny
import pytest

from llamapy.quants import codec

TINY = make_tiny.FOLDER
MANIFEST = tomllib.loads((TINY / "MANIFEST.toml").read_text())
NAMES = [name for name in MANIFEST if name.endswith(".gguf")]


@pytest.mark.parametrize("name", NAMES)
def test_manifest(name: str) -> None:
    data = (TINY / name).read_bytes()
    assert hashlib.sha256(data).hexdigest() == MANIFEST[name]["sha256"]
    assert len(data) == MANIFEST[name]["bytes"] < 300_000


def test_all_there() -> None:
    assert {path.name for path in TINY.glob("*.gguf")} == set(NAMES)
    assert {f"{name}.gguf" for name in make_tiny.MODELS} == set(NAMES)


def test_written_again(tmp_path: Path) -> None:
    """The tool still writes these bytes: types, names, order and numbers have not moved."""
    make_tiny.write("llama", tmp_path / "llama.gguf")
    assert (tmp_path / "llama.gguf").read_bytes() == (TINY / "llama.gguf").read_bytes()


def test_kinds() -> None:
    kinds = {kind for tiny in make_tiny.MODELS.values() for kind in tiny.types.values()}
    assert {"f32", "f16", "q8_0", "q4_0", "q4_1", "q4_K", "q6_K"} <= {
        codec.get(k).name for k in kinds
    }
