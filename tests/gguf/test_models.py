"""Real files of llama.cpp: written again they are the same bytes; llama.cpp loads what we split."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import llamapy
from llamapy.core.errors import FileFormatError
from llamapy.gguf.split import write_split
from llamapy.gguf.writer import GGUFWriter


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _writer(source, target: Path, skip: tuple[str, ...] = ()) -> GGUFWriter:
    writer = GGUFWriter(target, trim_dims=True)
    writer.add_all(source.metadata, skip=skip)
    for info in source.tensors:
        writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
    return writer


@pytest.mark.model
@pytest.mark.parametrize("mmap", [True, False])
def test_a_copy_of_a_real_model_is_the_same_file(smollm2, tmp_path, mmap):
    with llamapy.open_gguf(smollm2, mmap=mmap) as source:
        done = []
        _writer(source, tmp_path / "copy.gguf").write(source.bytes, on_done=done.append)
        assert done[-1] == sum(info.n_bytes for info in source.tensors)
    assert _sha256(tmp_path / "copy.gguf") == _sha256(smollm2)


@pytest.mark.model
@pytest.mark.peer
def test_llama_cpp_loads_our_split_set(smollm2, tmp_path, peer):
    with llamapy.open_gguf(smollm2) as source:
        paths = write_split(_writer(source, tmp_path / "m.gguf"), source.bytes, max_tensors=100)
    assert len(paths) == 3
    logits = []
    for path in (smollm2, paths[0]):
        with peer.open(path) as model, model.context(n_ctx=64, threads=1) as context:
            logits.append(context.logits(model.tokenize("Hello")))
    assert np.array_equal(logits[0], logits[1])
    with llamapy.open_gguf(paths[2]) as split:  # and merged again it is the file it was
        split_keys = ("split.no", "split.count", "split.tensors.count")
        merged = _writer(split, tmp_path / "merged.gguf", skip=split_keys)
        merged.write(split.bytes, inputs=paths)
    assert _sha256(tmp_path / "merged.gguf") == _sha256(smollm2)


@pytest.mark.model
def test_a_cut_real_model_says_how_much_is_missing(gemma3, tmp_path):
    whole = gemma3.stat().st_size
    with open(gemma3, "rb") as file:
        head = file.read(7 << 20)
    path = tmp_path / "cut.gguf"
    path.write_bytes(head)
    with pytest.raises(FileFormatError, match=f"truncated: has {7 << 20} bytes, needs {whole}"):
        llamapy.open_gguf(path)
