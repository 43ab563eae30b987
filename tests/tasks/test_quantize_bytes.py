"""Whole files are llama.cpp's, byte for byte: recorded hashes, and the peer where it runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import quantize_models as models

from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import codec
from llamapy.tasks import importance, quantize
from llamapy.tasks.file_types import COPY, FILE_TYPES
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.quantize import Options, quantize_file
from llamapy.tasks.quantize_plan import Choices

if TYPE_CHECKING:
    from peer import Peer

FIXTURES = Path(__file__).parents[2] / "fixtures" / "quantize"
Run = Callable[..., None]


@cache
def recorded() -> Any:
    return json.loads((FIXTURES / "types.json").read_text())


@cache
def imatrix_of(name: str) -> Imatrix:
    entries = {
        tensor: Entry(weights, np.ones(len(weights), np.int64))
        for tensor, weights in models.importances(name).items()
    }
    return Imatrix(entries, chunk_size=1)


@pytest.mark.golden
@pytest.mark.parametrize("file_type", [one.name for one in (*FILE_TYPES, COPY)])
def test_files_have_the_recorded_hashes(file_type: str, tmp_path: Path) -> None:
    compared, different = 0, []
    for name in ("uneven", "llama-4-experts"):
        models.write(name, tmp_path / "in.gguf")
        for how, truth in recorded()[name][file_type].items():
            if isinstance(truth, str):
                continue
            imatrix = imatrix_of(name) if how == "importance" else None
            target = tmp_path / f"{how}.gguf"
            for threads in (1, 3):
                options = Options(imatrix=imatrix, overwrite=True, threads=threads)
                quantize_file(tmp_path / "in.gguf", target, file_type, options)
                compared += 1
                if hashlib.sha256(target.read_bytes()).hexdigest() != truth[1]:
                    different.append((name, how, threads))
    assert different == []
    assert compared or file_type == "Q1_0"


# -- beside the peer


@pytest.fixture
def both(peer: Peer, tmp_path: Path) -> Run:
    """Quantize a file with both, and compare what they wrote."""
    from peer_tasks import quantize as reference

    def run(source: Path, file_type: str, choices: Choices | None = None, **options: Any) -> None:
        theirs = {
            k: v for k, v in options.items() if k in ("keep_split", "prune_layers", "overrides")
        }
        if choices:
            theirs |= {
                "tensor_types": list(choices.tensor_types),
                "output_tensor_type": choices.output,
                "token_embedding_type": choices.token_embedding,
                "pure": choices.pure,
                "leave_output_tensor": choices.leave_output,
                "allow_requantize": choices.allow_requantize,
            }
        keep = options.get("keep_split", False)
        a, b = tmp_path / "ours.gguf", tmp_path / ("peer" if keep else "peer.gguf")
        reference(peer, source, b, file_type, **theirs)
        quantize_file(source, a, file_type, Options(choices=choices or Choices(), **options))
        ours, others = sorted(tmp_path.glob("ours*")), sorted(tmp_path.glob("peer*"))
        assert [p.name.replace("ours", "") for p in ours] == [
            p.name.replace("peer", "") for p in others
        ]
        for mine, other in zip(ours, others):
            assert mine.read_bytes() == other.read_bytes(), mine.name

    return run


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Write a tiny model and give its path."""

    def write(name: str, **options: Any) -> Path:
        path = tmp_path / "in.gguf"
        models.write(name, path, **options)
        return path

    return write


@pytest.mark.peer
@pytest.mark.parametrize("file_type", ["Q4_K_M", "Q8_0", "BF16", "F32", "COPY"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_halves(kind: str, file_type: str, both: Run, model: Callable[..., Path]) -> None:
    both(model("llama-gqa4", kind=kind), file_type)


CHOICES = {
    "pure": Choices(pure=True),
    "leave": Choices(leave_output=True),
    "types": Choices(tensor_types=[("attn_v", "q8_0"), (r"blk\.[02]\..*up", "q5_1"), ("v", "f16")]),
    "ends": Choices(output="q5_0", token_embedding="iq4_nl"),
    "output": Choices(output="q8_0"),
}


@pytest.mark.peer
@pytest.mark.parametrize("how", list(CHOICES))
@pytest.mark.parametrize("name", ["llama", "llama-gqa4", "llama-8-experts"])
@pytest.mark.parametrize("file_type", ["Q4_K_M", "F16"])
def test_choices(
    how: str, name: str, file_type: str, both: Run, model: Callable[..., Path]
) -> None:
    both(model(name), file_type, CHOICES[how])


@pytest.mark.peer
def test_requantizing(peer: Peer, both: Run, model: Callable[..., Path], tmp_path: Path) -> None:
    from peer_tasks import quantize as reference

    source = tmp_path / "q.gguf"
    reference(peer, model("llama-4-experts"), source, "Q5_K_M")
    both(source, "Q4_0", Choices(allow_requantize=True))


@pytest.mark.peer
def test_pruned_layers(both: Run, model: Callable[..., Path]) -> None:
    both(model("llama"), "Q4_K_M", prune_layers=[3, 7, 15])


@pytest.mark.peer
def test_overrides(both: Run, model: Callable[..., Path]) -> None:
    changed = {
        "llama.expert_count": 0,
        "llama.attention.head_count_kv": 2,
        "general.name": "another",
        "new.number": 0.5,
        "new.flag": True,
    }
    both(model("llama"), "IQ4_XS", overrides=changed)


@pytest.mark.peer
def test_parts_stay_parts(both: Run, model: Callable[..., Path], tmp_path: Path) -> None:
    whole = model("llama")
    both(split_in_parts(whole, tmp_path), "Q4_K_M", keep_split=True)


@pytest.mark.peer
def test_parts_become_one(both: Run, model: Callable[..., Path], tmp_path: Path) -> None:
    both(split_in_parts(model("llama-8-experts"), tmp_path), "Q6_K")


@pytest.mark.peer
def test_one_file_kept_as_parts(both: Run, model: Callable[..., Path]) -> None:
    both(model("llama-gqa4"), "Q8_0", keep_split=True)


def split_in_parts(whole: Path, folder: Path) -> Path:
    """Cut a file into parts; the first one's path."""
    from llamapy.gguf.split import write_split

    with GGUFFile(whole, type_sizes=codec.type_sizes) as file:
        writer = GGUFWriter(folder / "parts.gguf", trim_dims=True)
        writer.add_all(file.metadata)
        for info in file.tensors:
            writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
        paths = write_split(writer, file.bytes, max_tensors=30)
    assert len(paths) > 2
    return Path(paths[0])


@pytest.mark.peer
def test_an_imatrix_file(peer: Peer, model: Callable[..., Path], tmp_path: Path) -> None:
    from peer_tasks import quantize as reference

    source, path = model("llama-8-experts"), tmp_path / ("i" * 140 + ".gguf")
    entries = {
        name: Entry(weights * 8, np.full(len(weights), 8, np.int64))
        for name, weights in models.importances("llama-8-experts").items()
        if "ffn_up" not in name
    }
    entries["blk.0.ffn_down_exps.weight"].counts[2] = 0  # an expert that was never used
    made = Imatrix(entries, ["first.txt", "second.txt"], chunk_count=4, chunk_size=2)
    importance.write_gguf(made, path)
    quantize_file(
        source, tmp_path / "ours.gguf", "Q3_K_M", imatrix=path, exclude_weights=["attn_k"]
    )
    weights = {
        name: np.where(entry.counts[:, None] > 0, entry.sums / np.float32(8), 1)
        for name, entry in entries.items()
        if "attn_k" not in name
    }
    keys = {
        "quantize.imatrix.file": str(path)[:127],
        "quantize.imatrix.dataset": "first.txt",
        "quantize.imatrix.entries_count": len(weights),
        "quantize.imatrix.chunks_count": 4,
    }
    reference(peer, source, tmp_path / "peer.gguf", "Q3_K_M", imatrix=weights, overrides=keys)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "peer.gguf").read_bytes()


@pytest.mark.peer
@pytest.mark.parametrize("alignment", [64, 128])
def test_the_alignment_of_the_file_is_kept(
    alignment: int, peer: Peer, model: Callable[..., Path], tmp_path: Path
) -> None:
    """llama.cpp keeps general.alignment and pads to 32 all the same: its file cannot be read."""
    from gguf import GGUFReader
    from peer_tasks import quantize as reference

    source = tmp_path / "aligned.gguf"
    with GGUFFile(model("uneven"), type_sizes=codec.type_sizes) as file:
        writer = GGUFWriter(source, alignment=alignment)
        writer.add_all(file.metadata)
        for info in file.tensors:
            writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
        writer.write(file.bytes)
    ours, theirs = tmp_path / "ours.gguf", tmp_path / "peer.gguf"
    quantize_file(source, ours, "Q4_0")
    reference(peer, source, theirs, "Q4_0")
    assert ours.read_bytes() != theirs.read_bytes()
    with GGUFFile(ours, type_sizes=codec.type_sizes) as file:
        assert file.alignment == alignment
        assert all(t.offset % alignment == 0 for t in file.tensors)
        read = GGUFReader(ours)  # the official reader finds the same data
        assert read.alignment == alignment
        for tensor in read.tensors:
            assert tensor.data.tobytes() == file.bytes(tensor.name).tobytes()


@pytest.mark.peer
@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_real_model(kind: str, both: Run, gemma3: Path, tmp_path: Path) -> None:
    source = tmp_path / "whole.gguf"
    quantize_file(gemma3, source, kind, allow_requantize=True)
    both(source, "Q4_K_M")


def test_the_call_for_programs_knows_its_options(tmp_path: Path) -> None:
    from llamapy.core.errors import UsageError

    models.write("names", tmp_path / "in.gguf")
    job = quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0", pure=True, threads=1)
    assert {one.kind for one in job.plan.tensors} == {"f32", "q8_0"}
    with pytest.raises(UsageError, match="unknown options: pur"):
        quantize_file(tmp_path / "in.gguf", tmp_path / "o2.gguf", "q8_0", pur=True)
    assert quantize.QUANTIZATION_VERSION == 2
