"""Perplexity: closed forms, numpy's own softmax on plain decodes, and llama.cpp."""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from math import log
from pathlib import Path

import numpy as np
import pytest

from llamapy.cli.main import run
from llamapy.core.errors import LlamapyError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows
from llamapy.tasks.chunks import cut
from llamapy.tasks.perplexity import macro_average, perplexity
from tests.tasks.conftest import TINY, text_of, tiny

Ids = Callable[..., np.ndarray]
EXACT = {"type_k": "f32", "type_v": "f32", "threads": 2}


def naive_nll(model: Model, chunk: np.ndarray, first: int, last: int) -> np.ndarray:
    """-log p of the tokens first to last of one chunk, by numpy in double."""
    fed = chunk.tolist()
    if model.tokenizer.add_bos:
        fed[0] = model.tokenizer.bos
    context = Context(model, n_ctx=len(fed), backend="reference", type_k="f32", type_v="f32")
    z = context.decode(Batch(fed, outputs="all")).astype(np.float64)
    log_p = (
        z
        - np.log(np.exp(z - z.max(1, keepdims=True)).sum(1, keepdims=True))
        - z.max(1, keepdims=True)
    )
    return np.array([-log_p[i - 1, chunk[i]] for i in range(first, last + 1)])


@pytest.mark.parametrize("n", [1, 5, 15, 16, 17, 300, 5000])
def test_scores_are_log_softmax(n: int) -> None:
    rng = np.random.default_rng(n)
    logits = (rng.normal(size=(7, n)) * 8).astype(np.float32)
    targets = rng.integers(0, n, 7).astype(np.int32)
    z = logits.astype(np.float64)
    want = np.log(np.exp(z - z.max(1, keepdims=True)).sum(1)) + z.max(1)
    want -= z[np.arange(7), targets]
    for threads in (1, 2):
        with Rows(threads) as rows:
            assert np.abs(rows.nll(logits, targets) - want).max() < 2e-6


@pytest.mark.parametrize("n_ctx", [16, 31])
def test_uniform_logits_give_the_size_of_the_vocabulary(
    uniform: Model, ids: Ids, n_ctx: int
) -> None:
    found = perplexity(uniform, ids(5 * n_ctx + 3), n_ctx=n_ctx, threads=2)
    assert found.ppl == pytest.approx(uniform.n_vocab, rel=1e-12)
    assert found.ppl_err == pytest.approx(0, abs=1e-5)
    assert found.n_chunks == 5
    assert found.n_tokens == 5 * (n_ctx - 1 - n_ctx // 2)
    assert all(chunk.ppl == pytest.approx(uniform.n_vocab, rel=1e-12) for chunk in found.chunks)


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2", "llama-moe"])
def test_only_second_halves_after_bos_are_scored(name: str, ids: Ids) -> None:
    model, chunks = tiny(name), ids(3 * 24).reshape(3, 24)
    want = [naive_nll(model, chunk, 13, 23) for chunk in chunks]
    found = perplexity(model, chunks.ravel(), n_ctx=24, backend="reference", **EXACT)
    assert found.ppl == pytest.approx(np.exp(np.mean(want)), rel=1e-5)
    for chunk, nll in zip(found.chunks, want):
        assert chunk.ppl == pytest.approx(np.exp(nll.mean()), rel=1e-5)
    running = [np.exp(np.concatenate(want[: i + 1]).mean()) for i in range(3)]
    assert [c.running for c in found.chunks] == pytest.approx(running, rel=1e-5)
    each = np.concatenate(want)
    error = each.std() / np.sqrt(len(each) - 1) * found.ppl
    assert found.ppl_err == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize(
    "sizes", [{"n_batch": 96}, {"n_batch": 48}, {"n_ubatch": 7}, {"n_ubatch": 23}, {"n_batch": 1}]
)
def test_the_figure_does_not_depend_on_the_batch(ids: Ids, sizes: dict[str, int]) -> None:
    tokens = ids(5 * 24 + 5)
    want = perplexity(tiny("llama"), tokens, n_ctx=24, n_batch=24, **EXACT)
    found = perplexity(tiny("llama"), tokens, n_ctx=24, **sizes, **EXACT)
    assert found.ppl == pytest.approx(want.ppl, rel=1e-5)
    assert found.n_tokens == want.n_tokens == 5 * 11


@pytest.mark.parametrize(("asked", "done"), [(1, 1), (3, 3), (99, 5), (-1, 5)])
def test_chunks_are_limited(ids: Ids, asked: int, done: int) -> None:
    heard: list[int] = []
    found = perplexity(
        tiny("llama"),
        ids(5 * 16 + 3),
        n_ctx=16,
        chunks=asked,
        threads=1,
        on_chunk=lambda chunk, total: heard.append(total),
    )
    assert found.n_chunks == done
    assert heard == [done] * done


@pytest.mark.parametrize("n", [0, 1, 15, 31])
def test_a_short_text_names_both_numbers(ids: Ids, n: int) -> None:
    with pytest.raises(LlamapyError, match=rf"has {n} tokens, but at least 32 "):
        perplexity(tiny("llama"), ids(n), n_ctx=16)
    assert cut(ids(32), 16).shape == (2, 16)


@pytest.mark.parametrize("options", [{"n_ctx": 3}, {"chunks": 0}, {"stride": -1}])
def test_wrong_options(ids: Ids, options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        perplexity(tiny("llama"), ids(2000), **options)


def test_strided_windows(ids: Ids) -> None:
    tokens = ids(2 * 256 + 40)
    found = perplexity(tiny("llama"), tokens, n_ctx=200, stride=32, chunks=2, **EXACT)
    want = []
    for start in (0, 32):
        window = tokens[start : start + 256]
        context = Context(tiny("llama"), n_ctx=256, backend="reference")
        z = context.decode(Batch(window, outputs="all")).astype(np.float64)
        for i in range(224, 256):
            want.append(np.log(np.exp(z[i - 1]).sum()) - z[i - 1, window[i]])
    assert found.ppl == pytest.approx(np.exp(np.mean(want)), rel=1e-3)
    assert (found.n_tokens, found.n_chunks) == (64, 2)


def test_figures_by_byte() -> None:
    model = tiny("llama")
    found = perplexity(model, text_of(80), n_ctx=16, threads=1)
    n_bytes = found.n_bytes
    assert 0 < n_bytes < len(text_of(80))
    bits = found.n_tokens * log(found.ppl) / log(2)
    assert found.bits_per_byte == pytest.approx(bits / n_bytes)
    assert log(found.per_byte) * n_bytes == pytest.approx(log(found.ppl) * found.n_tokens)


def test_macro_average_counts_each_text_the_same(uniform: Model, ids: Ids) -> None:
    a = perplexity(uniform, ids(200), n_ctx=16, threads=1)
    b = perplexity(tiny("llama"), ids(40), n_ctx=16, threads=1)
    assert macro_average([a, b]) == pytest.approx((a.ppl * b.ppl) ** 0.5)


# -- the command


@pytest.fixture
def texts(tmp_path: Path) -> list[str]:
    for name, n in (("a.txt", 80), ("b.txt", 150), ("short.txt", 3)):
        (tmp_path / name).write_text(text_of(n, n))
    return [str(tmp_path / name) for name in ("a.txt", "b.txt", "short.txt")]


def test_command_json(texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    model = str(TINY / "llama.gguf")
    assert run(["perplexity", "-m", model, "-f", texts[0], "-c", "16", "--json"]) == 0
    out, err = capfd.readouterr()
    found = loads(out)
    assert err == ""
    assert len(found["chunks"]) == found["n_chunks"]
    assert found["chunks"][-1]["running"] == found["ppl"]
    assert found["ppl_err"] > 0 and found["n_tokens"] == 7 * found["n_chunks"]


def test_command_of_several_files(texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    command = ["perplexity", "-m", str(TINY / "llama.gguf"), "-c", "16", *texts[:2], "--per-byte"]
    assert run(command) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"{texts[0]}: Final estimate: PPL = ")
    assert " +/- " in lines[0] and "bits" in lines[1]
    assert lines[-1].startswith("Macro average: PPL = ")


def test_command_with_a_short_text(texts: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["perplexity", "-m", str(TINY / "llama.gguf"), "-f", texts[2]]) == 1
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    n = len(tiny("llama").tokenize(text_of(3, 3)))
    assert f"has {n} tokens, but at least 1024 are needed" in err


def test_command_without_a_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["perplexity", "-m", str(TINY / "llama.gguf")]) == 2
    assert "-f FILE" in capfd.readouterr().err


# -- llama.cpp


@pytest.mark.peer
@pytest.mark.parametrize("name", ["llama"])
def test_an_exact_model_agrees_with_llama_cpp(name: str, peer: object) -> None:
    import peer_tasks

    text = text_of(300)
    with peer.open(TINY / f"{name}.gguf", repack=False) as model:  # type: ignore[attr-defined]
        want = peer_tasks.perplexity(model, text, 32, n_batch=64)
    found = perplexity(tiny(name), text, n_ctx=32, threads=2)
    assert found.ppl == pytest.approx(want.ppl, rel=1e-4)
    assert found.ppl_err == pytest.approx(want.ppl_err, rel=1e-3)


@pytest.mark.peer
@pytest.mark.model
@pytest.mark.slow
def test_a_real_model_agrees_with_llama_cpp(smollm2: Path, peer: object) -> None:
    """Rounded as there. Exact products are 0.4 % away, as llama.cpp is from the exact ones."""
    import pydoc

    import peer_tasks

    text = "\n".join(pydoc.render_doc(m) for m in ("argparse", "logging", "random"))
    with peer.open(smollm2) as model:  # type: ignore[attr-defined]
        want = peer_tasks.perplexity(model, text, chunks=20)
    found = perplexity(Model(smollm2), text, chunks=20, activations="q8")
    assert found.ppl == pytest.approx(want.ppl, rel=3e-3)
