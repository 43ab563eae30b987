"""The peer's driver on a tiny random model: every option arrives where it should."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import peer_abi
import peer_fetch
import pytest

if TYPE_CHECKING:
    from peer import Model, Peer

ROOT = Path(__file__).parent.parent.parent
N_VOCAB, N_EMBD, N_LAYER, N_HEAD = 263, 256, 2, 4
BASE_IDS = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{i:02X}>" for i in range(256)),
    "\u2581a",
    "b",
    "\u2581",
    "a",
]
KINDS = [2, 3, 3, *[6] * 256, 1, 1, 1, 1]


def write_tiny(path: Path, *, split: int = 0, flat: bool = False) -> Path:
    """A llama of two layers with random weights and a byte vocabulary, by the official writer.

    `split` puts that many tensors in a shard; `flat` makes all logits zero.
    """
    writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split)
    writer.add_block_count(N_LAYER)
    writer.add_context_length(512)
    writer.add_embedding_length(N_EMBD)
    writer.add_feed_forward_length(N_EMBD)
    writer.add_head_count(N_HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(0)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(BASE_IDS)
    writer.add_token_scores([-float(i) for i in range(N_VOCAB)])
    writer.add_token_types(KINDS)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    rng = np.random.default_rng(7)
    square = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (N_VOCAB, N_EMBD)}
    shapes |= {"output": (N_VOCAB, N_EMBD), "output_norm": (N_EMBD,)}
    for i in range(N_LAYER):
        shapes |= {f"blk.{i}.{name}": (N_EMBD, N_EMBD) for name in square}
        shapes |= {f"blk.{i}.{name}_norm": (N_EMBD,) for name in ("attn", "ffn")}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape) * (0 if flat and name == "output" else 0.1)
        writer.add_tensor(f"{name}.weight", values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def types(path: Path) -> dict[str, str]:
    """Tensor types of a file, as the official reader sees them."""
    return {
        t.name.removesuffix(".weight"): t.tensor_type.name for t in gguf.GGUFReader(path).tensors
    }


def value(path: Path, key: str) -> Any:
    """One metadata value, as the official reader sees it."""
    return gguf.GGUFReader(path).fields[key].contents()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's file."""
    return write_tiny(tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(peer: Peer, tiny: Path) -> Iterator[Model]:
    """The tiny model, opened by llama.cpp."""
    with peer.open(tiny) as opened:
        yield opened


pytestmark = pytest.mark.peer


def test_names_and_numbers_are_those_of_the_gguf_package(peer: Peer) -> None:
    theirs = {t.name.lower(): t.value for t in gguf.GGMLQuantizationType}
    assert theirs.items() <= peer.type_ids.items()
    files = {
        f.name.removeprefix("MOSTLY_").removeprefix("ALL_"): f.value for f in gguf.LlamaFileType
    }
    both = files.keys() & peer_abi.FTYPES.keys()
    assert len(both) > 30
    assert {n: files[n] for n in both} == {n: peer_abi.FTYPES[n] for n in both}


def test_layouts_that_differ_are_named(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert peer_abi.differences(peer.lib) == ""
    name = "llama_context_default_params"
    monkeypatch.setitem(peer_abi.DEFAULTS, name, {"n_batch": 7})
    assert peer_abi.differences(peer.lib) == f"{name}: n_batch is 2048 and not 7"


@pytest.mark.parametrize("text", ["a b", "  ab\n", "é世\U0001f600", b"\xff\x00a", ""])
def test_tokens_go_there_and_back(text: str | bytes, model: Model) -> None:
    raw = text.encode() if isinstance(text, str) else text
    ids = model.tokenize(text)
    assert ids[:1] == [1]  # BOS
    assert model.tokenize(text, add_special=False) == ids[1:]
    assert model.detokenize(ids, remove_special=True, unparse_special=False) in (raw, b" " + raw)
    assert b"".join(model.piece(i) for i in ids[1:]) == (b" " + raw if raw else b"")
    assert (model.n_vocab, model.eos, model.is_end(2), model.is_end(5)) == (N_VOCAB, 2, True, False)


def test_special_tokens_are_parsed_only_on_request(model: Model) -> None:
    assert model.tokenize("</s>", add_special=False, parse_special=True) == [2]
    assert len(model.tokenize("</s>", add_special=False, parse_special=False)) > 3


def test_logits_do_not_depend_on_the_batch(model: Model) -> None:
    tokens = [1, *range(50, 90)]
    with model.context(n_ctx=64, n_batch=64) as whole, model.context(n_ctx=64, n_batch=7) as parts:
        a, b = whole.logits(tokens), parts.logits(tokens)
        greedy = whole.greedy(tokens, 5)
        assert greedy[0] == int(a[-1].argmax())
        assert whole.logits(tokens + greedy[:1])[-1].argmax() == greedy[1]
    assert a.shape == (41, N_VOCAB)
    assert a.dtype == np.float32
    np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_context_options_arrive(model: Model) -> None:
    tokens = [1, *range(50, 90)]

    def run(**options: Any) -> Any:
        with model.context(n_ctx=64, **options) as context:
            return context.logits(tokens)

    plain = run(flash_attention="off", type_k="f32", type_v="f32")
    near = {name: np.abs(run(**o) - plain).max() for name, o in {
        "flash": {"flash_attention": "on", "type_k": "f32", "type_v": "f32"},
        "q8_0": {"flash_attention": "on", "type_k": "q8_0", "type_v": "q8_0"},
        "q4_0": {"flash_attention": "on", "type_k": "q4_0", "type_v": "q4_0"},
    }.items()}  # fmt: skip
    assert 0 < near["flash"] < near["q8_0"] < near["q4_0"] < 1
    with pytest.raises(RuntimeError, match="quantized V cache requires flash_attn"):
        run(flash_attention="off", type_v="q8_0")
    with pytest.raises(RuntimeError, match="unknown tensor type 'q9'"):
        run(type_k="q9")


def test_embeddings_are_pooled(model: Model) -> None:
    tokens = [1, 60, 70]

    def embed(pooling: str) -> Any:
        with model.context(n_ctx=64, embeddings=True, pooling=pooling) as context:
            return context.embed(tokens)

    rows = embed("none")
    assert rows.shape == (3, N_EMBD)
    np.testing.assert_allclose(embed("mean"), rows.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(embed("last"), rows[-1], rtol=1e-5)
    np.testing.assert_allclose(embed("cls"), rows[0], rtol=1e-5)


def test_sequences_of_one_batch_do_not_see_each_other(model: Model) -> None:
    a, b = [1, 60, 70], [1, 80, 90]
    with model.context(n_ctx=128, n_seq=2) as context:
        context.decode(
            [x for pair in zip(a, b, strict=True) for x in pair],
            positions=[0, 0, 1, 1, 2, 2],
            sequences=[0, 1] * 3,
            outputs=[False] * 4 + [True] * 2,
        )
        both = context.rows(2)
        alone = [context.logits(tokens)[-1] for tokens in (a, b)]
    np.testing.assert_allclose(both, alone, rtol=1e-3, atol=1e-3)


TEXT = "ab a b. " * 40


def test_perplexity_is_that_of_the_logits(model: Model) -> None:
    from peer_tasks import perplexity

    found = perplexity(model, TEXT, 32, chunks=3, n_batch=64)
    tokens = model.tokenize(TEXT)
    nll: list[float] = []
    with model.context(n_ctx=32) as context:
        for c in range(3):
            chunk = [1, *tokens[c * 32 : c * 32 + 32][1:]]
            logits = context.logits(chunk).astype(np.float64)
            p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            nll += [-np.log(p[i, chunk[i + 1]]) for i in range(16, 31)]
    assert found.n_tokens == 45
    assert found.ppl == pytest.approx(np.exp(np.mean(nll)), rel=1e-4)
    assert found.ppl_err == pytest.approx(found.ppl * np.std(nll) / np.sqrt(44), rel=1e-3)
    assert sum(found.chunk_nll) == pytest.approx(sum(nll), rel=1e-4)


def test_perplexity_of_even_logits_is_the_vocabulary(peer: Peer, tmp_path: Path) -> None:
    from peer_tasks import perplexity

    with peer.open(write_tiny(tmp_path / "flat.gguf", flat=True)) as flat:
        assert perplexity(flat, TEXT, 32).ppl == pytest.approx(N_VOCAB, rel=1e-6)
        with pytest.raises(RuntimeError, match=r"the text has \d tokens, at least 64"):
            perplexity(flat, "ab", 32)


def test_bench_gives_a_figure_a_repetition(model: Model) -> None:
    from peer_tasks import bench

    found = bench(model, n_prompt=16, n_gen=4, depth=8, n_seq=2, reps=3)
    assert {name: len(figures) for name, figures in found.items()} == {"pp": 3, "tg": 3}
    assert all(figure > 0 for figures in found.values() for figure in figures)
    assert list(bench(model, n_prompt=0, n_gen=2, reps=1)) == ["tg"]


IMPORTANCE = np.linspace(0.01, 10, N_EMBD, dtype=np.float32) ** 2


@pytest.mark.parametrize(
    ("ftype", "options", "expected"),
    [
        ("Q8_0", {}, {"output": "Q8_0", "token_embd": "Q8_0", "output_norm": "F32"}),
        ("Q4_K_M", {}, {"output": "Q6_K", "token_embd": "Q4_K", "blk.1.attn_v": "Q6_K"}),
        ("Q4_K_M", {"pure": True}, {"output": "Q4_K", "blk.1.attn_v": "Q4_K"}),
        ("Q4_K_M", {"leave_output_tensor": True}, {"output": "F32", "blk.0.attn_q": "Q4_K"}),
        ("Q4_K_M", {"output_tensor_type": "q5_k"}, {"output": "Q5_K", "blk.1.attn_v": "Q6_K"}),
        ("Q4_K_M", {"token_embedding_type": "q8_0"}, {"token_embd": "Q8_0"}),
        (
            "Q4_K_M",
            {"tensor_types": [("ffn_up", "q8_0"), (r"blk\.1\.attn_q", "f16")]},
            {"blk.0.ffn_up": "Q8_0", "blk.1.attn_q": "F16", "blk.0.attn_q": "Q4_K"},
        ),
        ("COPY", {}, {"output": "F32", "blk.0.attn_q": "F32"}),
    ],
)
def test_quantize_options_arrive(
    ftype: str,
    options: dict[str, Any],
    expected: dict[str, str],
    peer: Peer,
    tiny: Path,
    tmp_path: Path,
) -> None:
    from peer_tasks import quantize

    assert quantize(peer, tiny, tmp_path / "out.gguf", ftype, threads=1, **options) > 0
    assert expected.items() <= types(tmp_path / "out.gguf").items()


def test_quantize_writes_overrides_and_prunes(peer: Peer, tiny: Path, tmp_path: Path) -> None:
    from peer_tasks import quantize

    out = tmp_path / "out.gguf"
    overrides = {"a.int": 7, "a.float": 0.5, "a.bool": True, "a.str": "é" * 70}
    quantize(peer, tiny, out, "Q8_0", overrides=overrides, prune_layers=[0])
    assert [value(out, f"a.{kind}") for kind in ("int", "float", "bool")] == [7, 0.5, True]
    assert value(out, "llama.block_count") == 1
    assert [name for name in types(out) if name.startswith("blk.1")] == []


def test_quantize_minds_an_imatrix(peer: Peer, tiny: Path, tmp_path: Path) -> None:
    from peer_tasks import quantize

    def data(name: str, **options: Any) -> bytes:
        quantize(peer, tiny, tmp_path / name, "Q4_K", **options)
        tensors = {t.name: t.data.tobytes() for t in gguf.GGUFReader(tmp_path / name).tensors}
        return tensors["blk.0.attn_q.weight"]

    importance = {"blk.0.attn_q.weight": IMPORTANCE}
    assert data("a.gguf") != data("b.gguf", imatrix=importance)
    with pytest.raises(RuntimeError, match="imatrix size 3 is different from tensor size 256"):
        data("c.gguf", imatrix={"blk.0.attn_q.weight": IMPORTANCE[:3]})


def test_quantize_keeps_a_split(peer: Peer, tmp_path: Path) -> None:
    from peer_tasks import quantize

    write_tiny(tmp_path / "tiny.gguf", split=10)
    first = min(tmp_path.glob("tiny-*.gguf"))
    quantize(peer, first, tmp_path / "out", "Q8_0", keep_split=True)
    count = len(list(tmp_path.glob("tiny-*.gguf")))
    assert count > 1
    assert len(list(tmp_path.glob("out-*.gguf"))) == count
    quantize(peer, first, tmp_path / "one.gguf", "Q8_0")
    assert len(types(tmp_path / "one.gguf")) == 21


def test_quantize_refusals(peer: Peer, tiny: Path, tmp_path: Path) -> None:
    from peer_tasks import quantize

    out, again = tmp_path / "out.gguf", tmp_path / "again.gguf"
    quantize(peer, tiny, out, "Q8_0")
    with pytest.raises(RuntimeError, match="requantizing from type q8_0 is disabled"):
        quantize(peer, out, again, "Q4_0")
    quantize(peer, out, again, "Q4_0", allow_requantize=True)
    assert types(again)["blk.0.attn_q"] == "Q4_0"
    with pytest.raises(RuntimeError, match="unknown file type 'Q9'; there are F32, "):
        quantize(peer, tiny, again, "Q9")
    with pytest.raises(RuntimeError, match="invalid magic"):
        peer.open(Path(__file__))


def program(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python tools/peer.py ARGUMENTS`."""
    command = [sys.executable, str(ROOT / "tools" / "peer.py"), *map(str, arguments)]
    env = os.environ | environment
    return subprocess.run(command, check=False, capture_output=True, text=True, env=env)


def test_the_program_speaks_json(peer: Peer, tiny: Path, model: Model) -> None:
    done = program("greedy", tiny, "ab", "-n", "3", "-fa", "on")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["prompt"] == model.tokenize("ab")
    assert len(found["tokens"]) == 3


def test_the_cpu_level_can_be_chosen(peer: Peer) -> None:
    assert "SSE3" in program("system-info", LLAMAPY_PEER_CPU="sse42").stdout
    assert "AVX" not in program("system-info", LLAMAPY_PEER_CPU="sse42").stdout
    refused = program("system-info", LLAMAPY_PEER_CPU="z80")
    assert refused.returncode == 1
    assert re.fullmatch(r"peer: no CPU level 'z80' here; there are .*haswell.*\n", refused.stderr)


def test_why_it_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMAPY_CACHE", str(tmp_path))
    monkeypatch.setattr(peer_fetch.shutil, "which", lambda name: None)
    monkeypatch.setattr(peer_fetch.platform, "system", lambda: "Linux")
    monkeypatch.setattr(peer_fetch.platform, "machine", lambda: "x86_64")
    with pytest.raises(peer_fetch.PeerUnavailable, match="needs npm, which is not installed"):
        peer_fetch.fetch()
    monkeypatch.setattr(peer_fetch.platform, "machine", lambda: "aarch64")
    with pytest.raises(peer_fetch.PeerUnavailable, match="x86-64, this is Linux on aarch64"):
        peer_fetch.fetch()
    assert list(tmp_path.iterdir()) == [tmp_path / "peer"]


@pytest.mark.model
def test_a_real_model_answers(peer: Peer, smollm2: Path) -> None:
    with peer.open(smollm2) as model, model.context(n_ctx=64) as context:
        answer = context.greedy(model.tokenize("The capital of France is"), 1)
        assert model.detokenize(answer) == b" Paris"
