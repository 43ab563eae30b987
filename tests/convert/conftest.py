"""Fixtures of the converter's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.convert import folders


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    """A folder with a tiny Llama and a byte-level vocabulary."""
    return folders.assemble("llama", tmp_path)


@pytest.fixture
def spm_llama(tmp_path: Path) -> Path:
    """A folder with a tiny Llama and a sentencepiece vocabulary."""
    return folders.assemble("llama-yarn", tmp_path)
