"""Makes the makers importable, and ggml's own reader for a second opinion."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "gguf")]

from c_gguf import CGguf  # noqa: E402


@pytest.fixture(scope="session")
def c_gguf() -> CGguf:
    return CGguf()
