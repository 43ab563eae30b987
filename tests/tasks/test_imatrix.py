"""Importance matrices: against numpy's sums of captured activations, and the tools without a
model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.cli.main import run
from llamapy.core.errors import LlamapyError, UsageError
from llamapy.runtime.context import Context
from llamapy.runtime.forward import names
from llamapy.tasks import collect as task
from llamapy.tasks import importance
from llamapy.tasks.collect import collect
from llamapy.tasks.imatrix_stats import compare, statistics
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.perplexity import perplexity
from tests.tasks.conftest import TINY, text_of, tiny

Ids = Callable[..., np.ndarray]
EXACT = {"type_k": "f32", "type_v": "f32", "threads": 2}


def fed(name: str, tokens: np.ndarray, n_ctx: int) -> list[list[int]]:
    """The chunks as the model gets them."""
    chunks = tokens[: len(tokens) // n_ctx * n_ctx].reshape(-1, n_ctx).tolist()
    for chunk in chunks:
        chunk[0] = tiny(name).tokenizer.bos if tiny(name).tokenizer.add_bos else chunk[0]
    return chunks


@pytest.mark.parametrize("name", ["llama", "llama-moe"])
def test_capture_gives_what_the_graph_computes(name: str, ids: Ids) -> None:
    model, tokens = tiny(name), ids(20).tolist()
    wanted = ["blk.0.attn_norm", "blk.0.attn_q", "blk.1.out", "result_norm"]
    exact = EXACT | {"backend": "reference"}
    found = model.forward(tokens, capture=wanted, **exact)
    weight = model.tensors["blk.0.attn_q.weight"]
    matrix = weight.kind.dequantize(
        weight.buffer.owner.view(np.uint8).reshape(-1)[: weight.n_bytes].view(weight.kind.block)
    ).reshape(weight.ne[1], weight.ne[0])
    product = found.captured["blk.0.attn_norm"] @ matrix.T
    assert np.allclose(found.captured["blk.0.attn_q"], product, rtol=1e-4, atol=1e-5)
    assert found.captured["blk.1.out"].shape == (20, model.params.n_embd)
    context = Context(model, n_ctx=20, embeddings=True, **exact)
    last = context.decode(tokens)
    assert np.allclose(found.logits[-1], last[0], rtol=1e-5, atol=1e-5)
    assert np.allclose(found.captured["result_norm"][-1], context.embeddings[0], atol=1e-5)
    assert set(wanted) <= set(names(model))


def test_an_unknown_result_is_named(ids: Ids) -> None:
    with pytest.raises(UsageError, match=r"'blk.0.atn_q'.*did you mean blk.0.attn_q"):
        tiny("llama").forward(ids(4).tolist(), capture=["blk.0.atn_q"])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3"])
def test_sums_are_those_of_the_activations(name: str, backend: str, ids: Ids) -> None:
    """q, k, v meet the normalised input, the down projection what the gate lets through."""
    model, tokens = tiny(name), ids(3 * 24)
    found = collect(model, tokens.tolist(), n_ctx=24, backend=backend, **EXACT).imatrix
    squares = {"attn_norm": 0.0, "ffn_norm": 0.0}
    sums = dict(squares)
    for chunk in fed(name, tokens, 24):
        want = [f"blk.1.{one}" for one in squares]
        got = model.forward(chunk, capture=want, backend="reference", **EXACT).captured
        for one in squares:
            squares[one] = squares[one] + (got[f"blk.1.{one}"].astype(float) ** 2).sum(0)
            sums[one] = sums[one] + got[f"blk.1.{one}"].astype(float).sum(0)
    for weight, source in (
        ("attn_q", "attn_norm"),
        ("attn_k", "attn_norm"),
        ("attn_v", "attn_norm"),
        ("ffn_up", "ffn_norm"),
        ("ffn_gate", "ffn_norm"),
    ):
        entry = found.entries[f"blk.1.{weight}.weight"]
        assert entry.counts.tolist() == [72]
        assert np.allclose(entry.sums[0], squares[source], rtol=1e-3)
        assert entry.means is not None
        scale = np.sqrt(squares[source] * 72)
        assert (np.abs(entry.means[0] - sums[source]) < 1e-3 * scale).all()
    expected = {n for n, t in model.tensors.items() if n.startswith("blk.") and max(t.ne[1:]) > 1}
    assert set(found.entries) == expected


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_experts_are_counted_one_by_one(backend: str, ids: Ids) -> None:
    model, tokens = tiny("llama-moe"), ids(2 * 16)
    found = collect(model, tokens.tolist(), n_ctx=16, backend=backend, **EXACT).imatrix
    p = model.params
    up, down = (found.entries[f"blk.0.{n}.weight"] for n in ("ffn_up_exps", "ffn_down_exps"))
    assert up.sums.shape[0] == down.sums.shape[0] == p.n_expert
    assert up.counts.sum() == 32 * p.n_expert_used
    assert up.counts.tolist() == down.counts.tolist()
    # Each token is seen by n_expert_used experts: all experts' sums together are that many times
    # the sums of the router, which sees every token once.
    router = found.entries["blk.0.ffn_gate_inp.weight"]
    assert np.allclose(up.sums.sum(0), p.n_expert_used * router.sums[0], rtol=1e-4)


def test_few_rows_are_not_collected(ids: Ids) -> None:
    found = collect(tiny("llama-moe"), ids(30).tolist(), n_ctx=15, threads=1, n_ubatch=15).imatrix
    assert all("exps" in name for name in found.entries)


def test_every_row_counts_in_the_last_layer(ids: Ids) -> None:
    """Also in parts of a chunk that hold nothing scored; only the head leaves rows out."""
    tokens = ids(2 * 64).tolist()
    whole = collect(tiny("llama"), tokens, n_ctx=64, threads=1)
    parts = collect(tiny("llama"), tokens, n_ctx=64, threads=1, n_ubatch=16)
    assert parts.ppl == pytest.approx(whole.ppl, rel=1e-3)
    for name, entry in whole.imatrix.entries.items():
        assert entry.counts.tolist() == parts.imatrix.entries[name].counts.tolist() == [128]
        assert np.allclose(entry.sums, parts.imatrix.entries[name].sums, rtol=1e-2)
    last = max(int(name.split(".")[1]) for name in whole.imatrix.entries)
    assert f"blk.{last}.ffn_down.weight" in whole.imatrix.entries


def test_the_output_on_request(ids: Ids) -> None:
    for name, weight in (("llama", "output.weight"), ("llama-tied", "token_embd.weight")):
        tokens = ids(40).tolist()
        found = collect(tiny(name), tokens, n_ctx=20, process_output=True, threads=1).imatrix
        assert found.entries[weight].counts.tolist() == [40]
        assert weight not in collect(tiny(name), tokens, n_ctx=20, threads=1).imatrix.entries


def test_chunks_and_perplexity(ids: Ids) -> None:
    tokens = ids(5 * 20).tolist()
    found = collect(tiny("llama"), tokens, n_ctx=20, skip=1, chunks=3, threads=2)
    assert found.imatrix.chunk_count == 3 and found.imatrix.chunk_size == 20
    want = perplexity(tiny("llama"), tokens[20:], n_ctx=20, chunks=3, threads=2)
    assert found.ppl == pytest.approx(want.ppl, rel=1e-4)
    with pytest.raises(LlamapyError, match="has 20 tokens after the first 4 chunks"):
        collect(tiny("llama"), tokens, n_ctx=20, skip=4)


def test_an_interruption_keeps_what_there_is(ids: Ids) -> None:
    def on_chunk(chunk: object, total: int) -> None:
        if chunk.number == 2:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    options = {"n_ctx": 20, "n_batch": 20, "threads": 1}
    found = collect(tiny("llama"), ids(200).tolist(), on_chunk=on_chunk, **options)
    assert found.interrupted and found.imatrix.chunk_count == 2
    want = collect(tiny("llama"), ids(200).tolist(), chunks=2, **options).imatrix
    for name, entry in want.entries.items():
        assert np.allclose(found.imatrix.entries[name].sums, entry.sums, rtol=1e-6)


def test_the_command_keeps_what_there_is_and_exits_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: Any, on_chunk: object, **options: Any) -> task.Collected:
        def stop(chunk: Any, total: int) -> None:
            if chunk.number == 2:
                raise KeyboardInterrupt

        return whole(*args, on_chunk=stop, **options)

    whole = task.collect
    monkeypatch.setattr(task, "collect", interrupted)
    text, out = tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text(text_of(300))
    command = ["imatrix", "-m", str(TINY / "llama.gguf"), "-f", str(text), "-o", str(out)]
    assert run([*command, "-c", "20", "-ub", "20", "-t", "1"]) == 130
    assert importance.read(out).chunk_count == 2
    err = capfd.readouterr().err
    assert "holds what 2 chunks gave" in err and "Traceback" not in err


def test_collecting_goes_on_from_files(ids: Ids) -> None:
    tokens, options = ids(80).tolist(), {"n_ctx": 20, "threads": 1}
    first = collect(tiny("llama"), tokens[:40], dataset="a", **options).imatrix
    both = collect(tiny("llama"), tokens[40:], dataset="b", before=[first], **options).imatrix
    whole = collect(tiny("llama"), tokens, **options).imatrix
    assert both.datasets == ["a", "b"] and both.chunk_count == 4
    for name, entry in whole.entries.items():
        assert np.allclose(both.entries[name].sums, entry.sums, rtol=1e-4)
        assert both.entries[name].counts.tolist() == entry.counts.tolist()


# -- figures without a model


def matrix(**entries: Entry) -> Imatrix:
    return Imatrix(dict(entries), ["text"], 2, 8, path="m.gguf")


def test_statistics() -> None:
    sums = np.array([[8, 8, 8, 8], [0, 0, 0, 0], [4, 4, 4, 0]], np.float32)
    (found,) = statistics(matrix(w=Entry(sums, np.array([8, 0, 4]))))
    assert (found.n_mat, found.n_cols, found.least, found.most) == (3, 4, 0, 8)
    assert found.unseen == [1] and found.zeros == 1
    assert found.mean == pytest.approx(7 / 8) and found.largest == 1
    assert found.entropy == pytest.approx(np.log(7) / np.log(8))


def test_differences() -> None:
    a = matrix(
        same=Entry(np.full((1, 4), 8, np.float32), np.array([8])),
        other=Entry(np.full((1, 4), 8, np.float32), np.array([8])),
        a=Entry(np.ones((1, 2), np.float32), np.array([8])),
        odd=Entry(np.ones((1, 2), np.float32), np.array([8])),
    )
    b = matrix(
        same=Entry(np.full((1, 4), 16, np.float32), np.array([16])),
        other=Entry(np.full((1, 4), 4, np.float32), np.array([8])),
        odd=Entry(np.ones((1, 4), np.float32), np.array([8])),
    )
    found = compare(a, b)
    assert [(d.name, d.relative) for d in found.differences] == [("other", 0.5), ("same", 0)]
    assert all(d.cosine == pytest.approx(1) for d in found.differences)
    assert (found.only_a, found.only_b, found.misfits) == (["a"], [], ["odd"])


# -- the command


@pytest.fixture
def made(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    (tmp_path / "text.txt").write_text(text_of(120))
    out = tmp_path / "i.gguf"
    command = ["imatrix", "-m", str(TINY / "llama-moe.gguf"), "-f", str(tmp_path / "text.txt")]
    assert run([*command, "-o", str(out), "-c", "16", "--save-frequency", "2"]) == 0
    assert "Final estimate: PPL = " in capfd.readouterr().out
    return out


def test_command(made: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = made.parent
    assert (folder / "i.gguf.at_2").exists()
    assert importance.read(folder / "i.gguf.at_2").chunk_count == 2
    assert run(["imatrix", "show", str(made)]) == 0
    assert "ffn_up_exps" in capfd.readouterr().out
    dat, back = str(folder / "i.dat"), str(folder / "back.gguf")
    assert run(["imatrix", "convert", str(made), "-o", dat]) == 0
    assert run(["imatrix", "convert", dat, "-o", back]) == 0
    assert run(["imatrix", "merge", str(made), back, "-o", str(folder / "both.gguf")]) == 0
    capfd.readouterr()
    assert run(["imatrix", "diff", str(made), back, "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["differences"] and all(d["relative"] < 1e-5 for d in found["differences"])
    assert run(["imatrix", "show", str(made), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["chunk_size"] == 16
    assert run(["imatrix", "convert", str(made), "-o", dat]) == 1  # there already
    assert run(["imatrix", "bad", str(made)]) == 2
    assert run(["imatrix", "diff", str(made)]) == 2


def test_moments_share_a_source(ids: Ids) -> None:
    """q, k and v cost one node, not three."""
    collector = task.Collector()
    context = Context(tiny("llama"), n_ctx=32, observer=collector, threads=1)
    context.decode(ids(32).tolist())
    n_layer = tiny("llama").params.n_layer
    plan = collector._plans[32]
    assert len({moments for _, moments, _, _ in plan}) < len(plan)
    assert sum("blk.0." in name for name, *_ in plan) == 7 and n_layer > 0
