"""Opening models: what is wrong with a file is said, by its name, before anything is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.core.errors import FileFormatError, ModelError, ShapeError, UsageError
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import codec
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from tests.runtime.conftest import HAS_CPU, TINY, close, tiny, tokens

Change = Callable[[GGUFWriter, dict[str, Any]], None]


def altered(
    target: Path,
    name: str = "llama",
    *,
    values: dict[str, tuple[Any, ValueType | None]] | None = None,
    without: tuple[str, ...] = (),
    shapes: dict[str, tuple[int, ...]] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """A copy of a tiny model with other values (None: no such key), shapes (of the same size) and
    f32 tensors."""
    values, shapes, tensors = values or {}, shapes or {}, tensors or {}
    with GGUFFile(TINY / f"{name}.gguf", type_sizes=codec.type_sizes) as file:
        writer, data = GGUFWriter(target), []
        writer.add_all(file.metadata, skip=values)
        for key, (value, kind) in values.items():
            if value is not None:
                writer.add(key, value, kind)
        for info in file.tensors:
            if info.name in without or info.name in tensors:
                continue
            ne = shapes.get(info.name, info.ne)
            writer.add_tensor(info.name, ne, info.type_id, info.n_bytes)
            data.append(file.raw(info))
        for tensor, array in tensors.items():
            writer.add_tensor(tensor, array.shape[::-1], 0, array.nbytes)
            data.append(np.ascontiguousarray(array, np.float32).view(np.uint8))
        writer.write(data)
    return target


U32, I32, F32 = ValueType.UINT32, ValueType.INT32, ValueType.FLOAT32

WRONG_VALUES: list[tuple[str, Any, ValueType | None, str]] = [
    ("general.architecture", "gpt9", None, "'gpt9' is not supported .supported: .*llama.*"),
    ("general.architecture", None, None, "general.architecture is missing or not text"),
    ("general.architecture", 7, U32, "general.architecture is missing or not text"),
    ("llama.block_count", 4_000_000_000, U32, "block_count is 4000000000"),
    ("llama.block_count", 3, U32, "9 of 30 tensors missing: 'blk.2.attn_norm.weight'"),
    ("llama.block_count", 900, U32, "block_count is 900, but the file has 21 tensors"),
    ("llama.block_count", 2, I32, "llama.block_count has type i32, not u32"),
    ("llama.embedding_length", None, None, "key llama.embedding_length is missing"),
    ("llama.embedding_length", 0, U32, "embedding_length is 0, which must be positive"),
    (
        "llama.embedding_length",
        54,
        U32,
        r"token_embd.weight' has shape \[48, 288\], needed is \[54, 288\]",
    ),
    ("llama.embedding_length", 64, U32, "embedding_length is 64, which is no multiple of the 3"),
    ("llama.attention.head_count", 0, U32, "head_count is 0, which must be positive"),
    (
        "llama.attention.head_count_kv",
        2,
        U32,
        "head_count_kv is 2, which does not divide the 3 heads",
    ),
    ("llama.attention.head_count_kv", [1, 1], None, ""),
    ("llama.attention.head_count_kv", [1, 3], None, "head_count_kv differs by layer"),
    ("llama.attention.head_count_kv", [1], None, "has 1 elements for 2 layers"),
    ("llama.attention.head_count_kv", [1.0, 1.0], None, "has f32 elements, not u32"),
    (
        "llama.attention.layer_norm_rms_epsilon",
        None,
        None,
        "layer_norm_rms_epsilon is missing or not",
    ),
    ("llama.attention.layer_norm_rms_epsilon", float("nan"), F32, "layer_norm_rms_epsilon is nan"),
    ("llama.rope.dimension_count", 8, U32, r"llama turns whole heads \(16\), not 8 values"),
    (
        "llama.rope.dimension_count",
        18,
        U32,
        "dimension_count is 18, which must be even and at most 16",
    ),
    (
        "llama.rope.scaling.type",
        "cubic",
        None,
        "scaling.type is 'cubic', which is not none, linear",
    ),
    ("llama.expert_count", 4, U32, "expert_used_count is 0, which must be 1 to 4"),
    ("tokenizer.ggml.tokens", ["a", "b"], None, r"has shape \[48, 288\], needed is \[48, 2\]"),
]


@pytest.mark.parametrize("key, value, kind, message", WRONG_VALUES)
def test_metadata(
    tmp_path: Path, key: str, value: Any, kind: ValueType | None, message: str
) -> None:
    path = altered(tmp_path / "m.gguf", values={key: (value, kind)})
    if not message:
        assert Model(path).params.n_head_kv == 1
        return
    with pytest.raises(ModelError, match=message) as caught:
        Model(path)
    assert str(path) in str(caught.value) or "layer_norm_rms_epsilon" in message


def test_tensors(tmp_path: Path) -> None:
    gone = ("blk.0.attn_q.weight", "output_norm.weight")
    with pytest.raises(ModelError, match="2 of 21 tensors missing: 'blk.0.attn_q.weight', 'output"):
        Model(altered(tmp_path / "a.gguf", without=gone))
    turned = {"blk.1.ffn_down.weight": (48, 64)}
    with pytest.raises(
        ShapeError, match=r"ffn_down.weight' has shape \[48, 64\], needed is \[64, 48\]"
    ):
        Model(altered(tmp_path / "b.gguf", shapes=turned))


def test_unused_tensors_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    extra = {"blk.0.extra.weight": np.ones((2, 3), np.float32)}
    Model(altered(tmp_path / "m.gguf", tensors=extra))
    assert "1 tensors are not used: blk.0.extra.weight" in caplog.text


def test_not_a_model(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(FileFormatError):
        Model(tmp_path / "x")
    with pytest.raises(FileFormatError):
        Model(tmp_path / "none.gguf")


@pytest.mark.parametrize("same", [True, False])
def test_tied_or_not(tmp_path: Path, same: bool) -> None:
    """A14: with an `output.weight` equal to the embeddings, without one, and with one that
    differs."""
    table = _numbers("llama", "token_embd.weight")
    head = table if same else table[::-1]
    doubled = altered(tmp_path / "two.gguf", tensors={"output.weight": head})
    single = altered(tmp_path / "one.gguf", without=("output.weight",))
    ids = tokens(6)
    hidden = _context(doubled, embeddings=True)
    got = hidden.decode(ids)
    assert close(got, hidden.embeddings @ head.T)
    assert close(_context(single).decode(ids), got) is same


def _numbers(name: str, tensor: str) -> np.ndarray:
    found = tiny(name).tensors[tensor]
    return found.buffer.owner.view("<f4").reshape(found.ne[1::-1])


def _context(path: Path, **options: Any) -> Context:
    return Context(Model(path), **{"n_ctx": 64, "backend": "reference"} | options)


def test_half_precision_norms(tmp_path: Path) -> None:
    """Norms stored as f16 are used as their values say."""
    norm = _numbers("llama", "output_norm.weight").reshape(-1)
    path = tmp_path / "m.gguf"
    altered(path, without=("output_norm.weight",))
    with GGUFFile(path, type_sizes=codec.type_sizes) as file:
        writer = GGUFWriter(tmp_path / "half.gguf")
        writer.add_all(file.metadata)
        for info in file.tensors:
            writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
        writer.add_tensor("output_norm.weight", [48], 1, 96)
        writer.write([*(file.raw(i) for i in file.tensors), norm.astype(np.float16)])
    ids = tokens(5)
    want = Context(tiny("llama"), n_ctx=64, backend="reference").decode(ids)
    assert close(_context(tmp_path / "half.gguf").decode(ids), want, 1e-6)


def test_reading_and_mapping_are_the_same() -> None:
    ids = tokens(5)
    models = [Model(TINY / "llama.gguf", mmap=mmap) for mmap in (True, False)]
    got = [Context(m, n_ctx=64, backend="reference").decode(ids) for m in models]
    assert np.array_equal(got[0], got[1])


@pytest.mark.parametrize("host", ["reference", *(["cpu"] if HAS_CPU else [])])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3"])
@pytest.mark.parametrize("n", [1, 2, 99])
def test_layers_on_a_device(name: str, n: int, host: str) -> None:
    """-ngl N --device reference: splits and copies, and the same answers."""
    model = Model(TINY / f"{name}.gguf", n_gpu_layers=n, device="reference")
    ids = tokens(8)
    options: dict[str, Any] = {"n_ctx": 64, "backend": host, "type_k": "f32", "type_v": "f32"}
    options["activation_bits"] = 16  # the device does not round them at all
    context = Context(model, **options)
    got = context.decode(Batch(ids, outputs="all"))
    want = Context(tiny(name), **options).decode(Batch(ids, outputs="all"))
    assert close(got, want, 1e-3 if host == "cpu" and name == "llama-tied" else 1e-9)
    on_device = {t.name for t in model.tensors.values() if t.buffer.kind.name == "reference"}
    assert "output.weight" in on_device
    last = model.params.n_layer - 1
    assert (f"blk.{last}.attn_q.weight" in on_device) is (n > 1)
    assert ("blk.0.attn_q.weight" in on_device) is (n > model.params.n_layer)
    assert "token_embd.weight" not in on_device
    if host == "cpu":
        splits = next(iter(context._compiled.values())).execution.plan.splits
        assert [s.backend.name for s in splits][-1] == "reference" and len(splits) >= 2


def test_unknown_device() -> None:
    with pytest.raises(UsageError, match="no device 'cuda' .there are cpu, reference"):
        Model(TINY / "llama.gguf", n_gpu_layers=1, device="cuda")


def test_tokenizer_is_loaded_once_by_many_threads() -> None:
    model, found = Model(TINY / "llama.gguf"), []
    threads = [threading.Thread(target=lambda: found.append(model.tokenizer)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(map(id, found))) == 1


def test_text() -> None:
    model = tiny("llama")
    ids = model.tokenize("<|im_end|> said")
    assert model.detokenize(ids) == "<|im_end|> said"
    special = model.tokenize("<|im_end|> said", parse_special=True)
    assert special[0] == 2 and len(special) < len(ids)
    assert model.detokenize(special) == " said"
    assert model.detokenize(special, special=True) == "<|im_end|> said"
