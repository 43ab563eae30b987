"""Logits files and divergences: closed forms, numpy, and llama-perplexity's layout."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llamapy.core.errors import FileFormatError, LlamapyError
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows
from llamapy.tasks import logits_file
from llamapy.tasks.divergence import Divergence, between, diverge, mean, save_logits
from llamapy.tasks.logits_file import open_logits
from llamapy.tasks.perplexity import perplexity
from tests.tasks.conftest import tiny

Ids = Callable[..., np.ndarray]
OPTIONS = {"threads": 1, "type_k": "f32", "type_v": "f32"}


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z.astype(np.float64)
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


@pytest.mark.parametrize(("form", "limit"), [("f32", 1e-6), ("u16", 1.3e-4)])
@pytest.mark.parametrize("n_vocab", [7, 8, 320])
def test_rows_come_back(form: str, limit: float, n_vocab: int) -> None:
    z = (np.random.default_rng(1).normal(size=(5, n_vocab)) * 2).astype(np.float32)
    with Rows(1) as rows:
        raw = logits_file.encode(form, z, *rows.normalizers(z))
    width = logits_file.row_bytes(form, n_vocab)
    assert len(raw) == 5 * width
    found = logits_file.decode(form, np.frombuffer(raw, np.uint8).reshape(5, width), n_vocab)
    assert np.abs(found - log_softmax(z)).max() < limit


def test_the_16_bit_layout() -> None:
    """An odd vocabulary: the row is padded to an even number of codes; 16 nats are the range."""
    z = np.array([[0, -8, -40, 0, -16]], np.float32)
    with Rows(1) as rows:
        raw = logits_file.encode("u16", z, *rows.normalizers(z))
    assert len(raw) == 2 * (6 + 4)
    scale, least = struct.unpack("<2f", raw[:8])
    assert scale == np.float32(16) / np.float32(65535)
    assert least == pytest.approx(-16 - np.log(2 + np.exp(-8.0)), abs=1e-5)
    assert struct.unpack("<6H", raw[8:])[:5] == (65535, 32768, 0, 65535, 0)


def test_a_file_by_hand(tmp_path: Path, ids: Ids) -> None:
    """Written as llama-perplexity does, by struct."""
    tokens = ids(8).reshape(2, 4)
    path = tmp_path / "base"
    head = b"_logits_" + struct.pack("<3i", 4, 300, 2) + struct.pack("<8i", *tokens.ravel())
    row = struct.pack("<2f", 0.001, -9.0) + struct.pack("<300H", *range(300))
    path.write_bytes(head + 2 * row)
    found = open_logits(path)
    assert (found.n_ctx, found.n_vocab, found.n_chunk, found.form) == (4, 300, 2, "u16")
    assert (found.tokens == tokens).all()
    assert np.allclose(found.rows(1, 0, 1)[0], np.arange(300) * 0.001 - 9, atol=1e-6)
    for cut in (0, 7, 19, 30, len(head), len(head) + 2 * len(row) - 1):
        path.write_bytes((head + 2 * row)[:cut])
        with pytest.raises(FileFormatError):
            open_logits(path)


@pytest.mark.parametrize("form", ["f32", "u16"])
@pytest.mark.parametrize("sizes", [{}, {"n_ubatch": 9}])
def test_a_model_does_not_diverge_from_itself(
    tmp_path: Path, ids: Ids, form: str, sizes: dict[str, int]
) -> None:
    model, tokens, path = tiny("qwen2"), ids(4 * 24), tmp_path / "base"
    options = OPTIONS | sizes
    measured = save_logits(model, tokens, path, n_ctx=24, form=form, **options)
    assert measured.ppl == pytest.approx(perplexity(model, tokens, n_ctx=24, **options).ppl)
    found = diverge(model, open_logits(path), **options)
    exact = form == "f32"
    assert abs(found.mean_kld.value) < (1e-6 if exact else 1e-3)
    assert found.n_chunks == 4 and len(found.kld) == 44
    assert found.rms_dp.value < (1e-5 if exact else 1e-3)
    if exact:
        assert found.same_top.value == 1
        assert found.ratio.value == pytest.approx(1, abs=1e-5)
    assert diverge(model, open_logits(path), chunks=3, **options).n_chunks == 3


def test_divergence_is_what_numpy_says() -> None:
    rng = np.random.default_rng(0)
    p = log_softmax(rng.normal(size=(200, 50))).astype(np.float32)
    z = (p + rng.normal(size=p.shape) * 0.3).astype(np.float32)
    targets = rng.integers(0, 50, 200).astype(np.int32)
    q, at = log_softmax(z), np.arange(200)
    with Rows(2) as rows:
        found = between(p, z, targets, rows)
    assert np.allclose(found.kld, (np.exp(p) * (p - q)).sum(1), atol=1e-5)
    assert np.allclose(found.nll, -q[at, targets], atol=1e-5)
    assert np.allclose(found.dp, np.exp(q[at, targets]) - np.exp(p[at, targets]), atol=1e-6)
    assert (found.same == (p.argmax(1) == q.argmax(1))).all()
    ratio = -q[at, targets] + p[at, targets]
    assert found.log_ratio.value == pytest.approx(ratio.mean(), abs=1e-5)
    assert found.log_ratio.error == pytest.approx(ratio.std() / np.sqrt(199), rel=1e-3)
    pearson = np.corrcoef(q[at, targets], p[at, targets])[0, 1]
    assert found.correlation == pytest.approx(pearson, rel=1e-4)
    assert found.rms_dp.value == pytest.approx(np.sqrt((found.dp**2).mean()))
    assert found.percentiles("kld")["50"] == pytest.approx(np.median(found.kld))
    assert found.percentiles("dp")["max"] == found.dp.max()
    assert set(found.as_dict()) >= {"mean_kld", "same_top_err", "dp_percentiles", "n_tokens"}


def test_few_values_have_no_error() -> None:
    assert mean(np.ones(10)).error == 0
    assert mean(np.array([0.0, 2.0] * 8)).error == pytest.approx(1 / np.sqrt(15))
    assert Divergence(np.ones(2), np.ones(2)).log_ratio.value == 0


def test_uniform_against_itself(uniform: Model, tmp_path: Path, ids: Ids) -> None:
    path = tmp_path / "base"
    save_logits(uniform, ids(64), path, n_ctx=16, threads=1)
    found = diverge(uniform, open_logits(path), threads=1)
    assert found.mean_kld.value == pytest.approx(0, abs=1e-6)
    assert found.ppl_base.value == pytest.approx(uniform.n_vocab, rel=1e-5)


def test_another_vocabulary_is_refused(tmp_path: Path, ids: Ids) -> None:
    path, tokens = tmp_path / "base", ids(8).reshape(2, 4)
    with logits_file.Writer(path, tokens, 999, form="f32") as file:
        file.add(np.zeros((2, 999), np.float32), np.zeros(2), np.zeros(2))
    with pytest.raises(LlamapyError, match="999"):
        diverge(tiny("llama"), open_logits(path))
