"""The reader of safetensors: what is right is read exactly, what is wrong is refused at once."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from llamapy.convert import safetensors
from llamapy.convert.checkpoint import INDEX, open_folder
from llamapy.core.errors import FileFormatError, LlamapyError, ModelError, UsageError
from tests.convert import folders


def raw_file(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str, shape: list[int], a: int, b: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [a, b]}


def test_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    made = {
        "b": rng.standard_normal((5, 3)).astype(np.float32),
        "a": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "scalar": np.float32(7).reshape(()),
        "none": np.empty((0, 4), np.float32),
    }
    path = tmp_path / "x.safetensors"
    folders.write_safetensors(path, made)
    found = safetensors.tensors(path)
    assert list(found) == sorted(made)
    for name, values in made.items():
        assert np.array_equal(found[name].read(), values)
    assert np.array_equal(found["b"].read(1, 3), made["b"][1:3])
    assert np.array_equal(found["a"].read(2, 5), made["a"].reshape(6, 4)[2:5])


def test_small_floats() -> None:
    """FP8 by the formats' own words: OFP8 (E4M3 without infinities, E5M2 as IEEE)."""
    codes = np.array([0, 0x38, 0xB8, 0x7E, 0x08, 0x01, 0x7F], np.uint8)
    got = safetensors.to_floats(codes, "F8_E4M3")
    assert got[:6].tolist() == [0, 1, -1, 448, 2**-6, 2**-9] and np.isnan(got[6])
    codes = np.array([0x3C, 0x7B, 0x01, 0x7C, 0xFC, 0x7D], np.uint8)
    got = safetensors.to_floats(codes, "F8_E5M2")
    assert got[:5].tolist() == [1, 57344, 2**-16, np.inf, -np.inf] and np.isnan(got[5])
    assert safetensors.to_floats(np.array([0x3FC0], np.uint16), "BF16").tolist() == [1.5]
    assert safetensors.to_floats(np.array([127, 128], np.uint8), "F8_E8M0").tolist() == [1, 2]


BAD = {
    "length of 2^60": struct.pack("<Q", 2**60) + b"{}",
    "longer than the file": struct.pack("<Q", 100) + b"{}",
    "no header": b"\x02\0",
    "empty": b"",
    "not JSON": struct.pack("<Q", 4) + b"{{{{",
    "a list": struct.pack("<Q", 2) + b"[]",
    "deep": struct.pack("<Q", 100_000) + b"[" * 100_000,
    "twice": struct.pack("<Q", 15) + b'{"a":1, "a":{}}',
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
}
BAD_TENSORS = {
    "beyond the end": entry("F32", [2], 0, 8),
    "wrong size": entry("F32", [3], 0, 4),
    "negative": entry("F32", [1], -4, 0),
    "backwards": entry("F32", [1], 4, 0),
    "type": entry("F31", [1], 0, 4),
    "shape": {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]},
    "huge": entry("F32", [2**62, 2**62], 0, 4),
    "bool size": entry("F32", [True], 0, 4),
    "nothing": {},
    "number": 3,
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(BAD[name])
    with pytest.raises(FileFormatError) as caught:
        safetensors.tensors(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", BAD_TENSORS)
def test_bad_tensors(name: str, tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m.safetensors", {"w": BAD_TENSORS[name]}, bytes(4))
    with pytest.raises(FileFormatError, match="tensor 'w'"):
        safetensors.tensors(path)


def test_overlap(tmp_path: Path) -> None:
    header = {"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}
    with pytest.raises(FileFormatError, match="overlaps"):
        safetensors.tensors(raw_file(tmp_path / "m.safetensors", header, bytes(8)))


def test_every_cut_is_an_error(llama: Path) -> None:
    path = llama / "model.safetensors"
    whole = path.read_bytes()
    for n in [*range(0, 300, 7), len(whole) - 1]:
        path.write_bytes(whole[:n])
        with pytest.raises(LlamapyError):
            open_folder(llama)


def split_in_two(folder: Path) -> dict[str, str]:
    """The model's file as two with an index; {tensor: file}."""
    tensors = folders.read_safetensors(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2]}
    parts["model-00002-of-00002.safetensors"] = names[1::2]
    for file, own in parts.items():
        folders.write_safetensors(folder / file, {n: tensors[n] for n in own})
    places = {n: file for file, own in parts.items() for n in own}
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return places


def test_missing_part(llama: Path) -> None:
    places = split_in_two(llama)
    second = "model-00002-of-00002.safetensors"
    n = sum(file == second for file in places.values())
    (llama / second).unlink()
    with pytest.raises(ModelError, match=rf"{second} \({n} tensors\)"):
        open_folder(llama)


def test_tensor_in_two_parts(llama: Path) -> None:
    split_in_two(llama)
    first, second = sorted(llama.glob("*.safetensors"))
    folders.write_safetensors(
        second, folders.read_safetensors(first) | folders.read_safetensors(second)
    )
    with pytest.raises(FileFormatError, match="is also in"):
        open_folder(llama)


def test_index_that_lies(llama: Path) -> None:
    places = split_in_two(llama)
    (llama / INDEX).write_text(json.dumps({"weight_map": places | {"x": places.popitem()[1]}}))
    with pytest.raises(ModelError, match="lacks 1 of"):
        open_folder(llama)
    for bad in ("../other.safetensors", "/etc/passwd", "a/b.safetensors"):
        (llama / INDEX).write_text(json.dumps({"weight_map": {"x": bad}}))
        with pytest.raises(FileFormatError, match="weight_map"):
            open_folder(llama)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        open_folder(tmp_path / "none")
    with pytest.raises(ModelError, match=r"no config\.json"):
        open_folder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="no model"):
        open_folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match="can run code"):
        open_folder(tmp_path)
    with pytest.raises(ModelError, match="architectures"):
        _ = open_folder(tmp_path, with_tensors=False).architecture
