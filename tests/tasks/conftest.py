"""Tiny models and texts for the tests of whole jobs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamapy.runtime.model import Model

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"
WORDS = ("the sun a cat of is on and to in it was red big run dog he she not for").split()  # noqa: SIM905


@cache
def tiny(name: str) -> Model:
    """The tiny model of this name, opened once."""
    return Model(TINY / f"{name}.gguf")


def text_of(n_words: int, seed: int = 0) -> str:
    """Words in a random order, the same for the same seed."""
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(n_words))


@pytest.fixture(scope="session")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """The tiny Llama with an output of zeros: every token is as likely as any other."""
    path = tmp_path_factory.mktemp("uniform") / "uniform.gguf"
    shutil.copy(TINY / "llama.gguf", path)
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == "output.weight")
    offset, n_bytes = int(tensor.data_offset), int(tensor.n_bytes)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(n_bytes))
    return Model(path)


@pytest.fixture
def ids() -> Callable[..., np.ndarray]:
    """ids(n): n random ordinary tokens of a tiny model."""

    def ids(n: int, seed: int = 0) -> np.ndarray:
        return np.random.default_rng(seed).integers(6, 280, n).astype(np.int32)

    return ids
