"""What llama-imatrix collected of tiny models (fixtures/measures, tools/record_measures.py): our
values are its values, and its files are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from llamapy.tasks import importance
from llamapy.tasks.collect import collect
from tests.tasks.conftest import tiny

FOLDER = Path(__file__).parents[2] / "fixtures" / "measures"
EXACT = {"threads": 1, "type_k": "f32", "type_v": "f32"}
N_CTX, N_CHUNKS = 32, 8
# An F16 weight has llama.cpp round what it meets to F16: with and without the same rounding here.
WAYS = [("llama", "exact", 1e-4), ("llama-moe", "exact", 4e-3), ("llama-moe", "q8", 1e-3)]
BOTH = pytest.mark.parametrize("name", ["llama", "llama-moe"])


@pytest.mark.parametrize(("name", "activations", "rtol"), WAYS)
def test_importances_are_theirs(name: str, activations: str, rtol: float) -> None:
    """Of an F32 model, and of an F16 one of experts: all counts, and all sums as near as F16 is."""
    theirs = importance.read(FOLDER / f"{name}.imatrix.gguf")
    text, options = (FOLDER / "text.txt").read_text(), {"n_ctx": N_CTX, "chunks": N_CHUNKS, **EXACT}
    made = collect(tiny(name), text, activations=activations, **options)
    ours = made.imatrix
    assert set(ours.entries) == set(theirs.entries) and theirs.chunk_count == ours.chunk_count
    assert theirs.chunk_size == ours.chunk_size == N_CTX
    for key, other in theirs.entries.items():
        mine = ours.entries[key]
        assert mine.counts.tolist() == other.counts.tolist()
        assert np.allclose(mine.sums, other.sums, rtol=rtol), key
        off = np.linalg.norm(mine.sums - other.sums) / np.linalg.norm(other.sums)
        assert off < rtol / 5, key
        if other.means is not None and mine.means is not None:
            scale = np.sqrt(other.sums * np.maximum(other.counts, 1)[:, None])
            assert (np.abs(mine.means - other.means) <= 1e-3 * scale + 1e-6).all(), key


def test_importances_of_an_f16_model_are_exact() -> None:
    """The float32 meaning of every op (no kernel) gives ours; theirs are up to 2.2e-3 from it."""
    text = (FOLDER / "text.txt").read_text()
    options = {"n_ctx": N_CTX, "chunks": 4, **EXACT}
    ours = collect(tiny("llama-moe"), text, **options).imatrix
    exact = collect(tiny("llama-moe"), text, backend="reference", **options).imatrix
    for key, one in exact.entries.items():
        assert np.allclose(ours.entries[key].sums, one.sums, rtol=1e-4), key


@BOTH
def test_their_legacy_file_holds_the_same(name: str) -> None:
    gguf, dat = (importance.read(FOLDER / f"{name}.imatrix.{form}") for form in ("gguf", "dat"))
    assert set(gguf.entries) == set(dat.entries) and dat.is_legacy
    for key, one in gguf.entries.items():
        seen = one.counts > 0
        mean = one.sums[seen] / one.counts[seen, None]
        other = dat.entries[key]  # without counts of experts
        means = (other.sums / other.counts[0]).reshape(one.sums.shape)
        assert np.allclose(means[seen], mean, rtol=1e-4), key
