"""Tiny models and ways to run them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.runtime.context import Context
from llamapy.runtime.model import Model

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
HAS_CPU = importlib.util.find_spec("llamapy.backend.cpu.device") is not None
BACKENDS = ["reference", *(["cpu"] if HAS_CPU else [])]


@cache
def tiny(name: str) -> Model:
    """The tiny model of this name, opened once."""
    return Model(TINY / f"{name}.gguf")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(backend: str) -> Callable[..., Context]:
    """make("llama", n_ctx=64): a context of a tiny model on the test's backend, with an exact
    cache."""

    def make(name: str = "llama", **options: Any) -> Context:
        facts: dict[str, Any] = {"n_ctx": 64, "backend": backend, "type_k": "f32", "type_v": "f32"}
        facts |= {"threads": 2} | options
        return Context(tiny(name), **facts)

    return make


def tokens(n: int, seed: int = 0) -> list[int]:
    """n random ids of ordinary tokens."""
    found: list[int] = np.random.default_rng(seed).integers(6, 280, n).tolist()
    return found


def close(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], limit: float = 1e-10) -> bool:
    """Whether the squares of the differences are below `limit` of the squares of b."""
    return a.shape == b.shape and float(((a - b) ** 2).sum()) <= limit * float((b**2).sum())
