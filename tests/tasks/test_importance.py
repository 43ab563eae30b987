"""Importance matrices: both formats, told apart by content; odd values; files of other models."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapy.core.errors import FileFormatError, LlamapyError, ModelError, QuantError
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import api, codec
from llamapy.tasks import importance
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.quantize import Options, quantize_file

NAME = "blk.0.ffn_up_exps.weight"


def entry(n_mat: int = 1, n_cols: int = 256, count: int = 4, seed: int = 0) -> Entry:
    rng = np.random.RandomState(seed)
    sums = (rng.standard_normal((n_mat, n_cols)) ** 2).astype(np.float32) * count
    return Entry(sums, np.full(n_mat, count, np.int64))


def dat(entries: dict[str, tuple[int, list[float]]], tail: bytes = b"") -> bytes:
    """The older format as its description has it: facts of tools/imatrix/imatrix.cpp."""
    out = struct.pack("<i", len(entries))
    for name, (calls, values) in entries.items():
        raw = name.encode()
        out += struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, len(values))
        out += struct.pack(f"<{len(values)}f", *values)
    return out + tail


def official(path: Path, entries: dict[str, tuple[Any, Any]], **keys: Any) -> None:
    """The GGUF format, written by the gguf package."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", keys.get("datasets", ["a.txt"]))
    writer.add_uint32("imatrix.chunk_count", 3)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", np.asarray(sums, np.float32))
        writer.add_tensor(f"{name}.counts", np.asarray(counts, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_file_of_the_official_writer(tmp_path: Path) -> None:
    sums = np.arange(8, dtype=np.float32).reshape(2, 4)
    official(tmp_path / "i.dat", {"b": (sums, [[2.0], [0.0]]), "a": (sums[:1], [[5.0]])})
    found = importance.read(tmp_path / "i.dat")  # the suffix says nothing
    assert list(found.entries) == ["a", "b"]
    assert found.datasets == ["a.txt"] and (found.chunk_count, found.chunk_size) == (3, 512)
    np.testing.assert_array_equal(found.entries["b"].sums, sums)
    assert found.entries["b"].counts.tolist() == [2, 0] and found.entries["b"].unseen == [1]
    np.testing.assert_array_equal(found.entries["b"].mean_squares(), [sums[0] / 2, np.ones(4)])


def test_our_file_as_the_official_reader_sees_it(tmp_path: Path) -> None:
    made = Imatrix({"w": entry(3, 32), "v": entry(1, 8)}, ["x", ""], 7, 256, n_layer_nextn=1)
    importance.write_gguf(made, tmp_path / "i.gguf")
    read = gguf.GGUFReader(tmp_path / "i.gguf")
    assert [t.name for t in read.tensors] == ["v.in_sum2", "v.counts", "w.in_sum2", "w.counts"]
    tensors = {t.name: t for t in read.tensors}
    np.testing.assert_array_equal(tensors["w.in_sum2"].data, made.entries["w"].sums)
    assert tensors["w.counts"].shape.tolist() == [1, 3]
    assert read.fields["imatrix.chunk_size"].contents() == 256
    assert read.fields["imatrix.datasets"].contents() == ["x", ""]
    assert read.fields["general.type"].contents() == "imatrix"


def test_the_older_format(tmp_path: Path) -> None:
    tail = struct.pack("<ii5s", 9, 5, b"d.txt")
    path = tmp_path / "i.gguf"
    path.write_bytes(dat({"w": (4, [4.0, 8.0]), "z": (0, [3.0])}, tail))
    found = importance.read(path)
    assert found.is_legacy and found.datasets == ["d.txt"] and found.chunk_count == 9
    assert found.entries["w"].mean_squares().tolist() == [[1.0, 2.0]]
    assert found.entries["z"].mean_squares().tolist() == [[3.0]]
    importance.write_dat(found, tmp_path / "again.dat")
    whole = (tmp_path / "again.dat").read_bytes()
    assert whole == dat({"w": (4, [4.0, 8.0]), "z": (1, [3.0])}, tail)
    path.write_bytes(dat({"w": (4, [4.0, 8.0])}))  # the oldest files say no more
    assert importance.read(path).datasets == []


def test_forms_turn_into_each_other(tmp_path: Path) -> None:
    """llama.cpp's formula: calls are chunks, rounded up; an unseen expert weighs 1."""
    several = entry(2, 4, count=1000)
    several.counts[1] = 0
    made = Imatrix({"w": several, "none": Entry(several.sums, several.counts * 0)}, ["a"], 2, 512)
    importance.write_dat(made, tmp_path / "i.dat")
    calls = np.float32(2)
    values = [*(several.sums[0] / np.float32(1000) * calls), *([1.0 * calls] * 4)]
    expected = dat({"w": (2, values)}, struct.pack("<ii1s", 2, 1, b"a"))
    assert (tmp_path / "i.dat").read_bytes() == expected
    importance.write_gguf(importance.read(tmp_path / "i.dat"), tmp_path / "i.gguf")
    back = importance.read(tmp_path / "i.gguf")
    assert back.chunk_size == 512 and back.entries["w"].counts.tolist() == [1024]
    np.testing.assert_allclose(
        back.entries["w"].mean_squares().reshape(2, 4), several.mean_squares(), rtol=1e-6
    )


@pytest.mark.parametrize("form", ["dat", "gguf"])
def test_files_that_end_early(form: str, tmp_path: Path) -> None:
    path = tmp_path / "whole"
    made = Imatrix({"w": entry(2, 16), "v": entry(1, 4)}, ["data.txt"], 3, 512)
    getattr(importance, f"write_{form}")(made, path)
    whole = path.read_bytes()
    data_end = len(whole) - (16 if form == "dat" else 0)  # 4 + 4 + 8: the end may be missing
    for n in range(0, len(whole) - 31 if form == "gguf" else len(whole), 8):
        if n == data_end:
            continue
        path.write_bytes(whole[:n])
        with pytest.raises(FileFormatError, match="whole"):
            importance.read(path)


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read(raw: bytes) -> None:
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        try:
            importance.read(file.name)
        except FileFormatError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"w": ([1.0] * 5, [1.0, 1.0])}, "5 sums do not go with 2 counts"),
        ({"w": ([1.0] * 4, [np.nan])}, "a count is not finite"),
    ],
)
def test_entries_that_cannot_be(entries: Any, message: str, tmp_path: Path) -> None:
    official(tmp_path / "i.gguf", entries)
    with pytest.raises(FileFormatError, match=message):
        importance.read(tmp_path / "i.gguf")


def test_a_model_is_no_importance_matrix(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf")
    writer.add("general.architecture", "llama")
    writer.write([])
    with pytest.raises(FileFormatError, match=r"is no importance matrix: imatrix.datasets"):
        importance.read(tmp_path / "m.gguf")


def test_merging_adds_up() -> None:
    a = Imatrix({"w": entry(2, 4, 6, 1), "a": entry(1, 4)}, ["x"], 2, 512)
    b = Imatrix({"w": entry(2, 4, 2, 2)}, ["y"], 3, 512)
    whole = importance.merge([a, b])
    np.testing.assert_array_equal(
        whole.entries["w"].sums, a.entries["w"].sums + b.entries["w"].sums
    )
    assert whole.entries["w"].counts.tolist() == [8, 8] and "a" in whole.entries
    assert whole.datasets == ["x", "y"] and whole.chunk_count == 5 and whole.chunk_size == 512
    with pytest.raises(LlamapyError, match=r"entry 'w' has 8 values of 2 matrices"):
        importance.merge([a, Imatrix({"w": entry(1, 7)}, chunk_size=512)])


# -- what a quantization makes of them


def write_model(path: Path, name: str = NAME, shape: tuple[int, ...] = (4, 3, 256)) -> Path:
    array = (np.random.RandomState(3).standard_normal(shape) * 0.05).astype(np.float32)
    writer = GGUFWriter(path)
    writer.add("general.architecture", "llama")
    writer.add_tensor(name, shape[::-1], 0, array.nbytes)
    writer.write([array.tobytes()])
    return path


def decoded(path: Path, name: str = NAME) -> Any:
    with GGUFFile(path, type_sizes=codec.type_sizes) as file:
        info = file.tensor(name)
        return api.dequantize(file.bytes(info).copy(), info.type_id, info.ne[::-1])


def test_experts_that_were_never_used_weigh_one(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    used = entry(4, 256, 10)
    used.counts[:] = [10, 0, 7, 3]
    job = quantize_file(
        source, tmp_path / "a.gguf", "q4_0", imatrix=Imatrix({NAME: used}, chunk_size=1)
    )
    assert [t for t in job.warnings if "1 of 4 experts were never used (1)" in t]
    plain = Entry(np.ones((4, 256), np.float32), np.ones(4, np.int64))
    quantize_file(source, tmp_path / "b.gguf", "q4_0", imatrix=Imatrix({NAME: plain}, chunk_size=1))
    a, b = decoded(tmp_path / "a.gguf"), decoded(tmp_path / "b.gguf")
    np.testing.assert_array_equal(a[1], b[1])
    assert (a[0] != b[0]).any()


KINDS = ("q4_0", "q5_1", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K", "iq4_nl", "iq4_xs", "iq3_s")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("zeros", ["all", "half", "some"])
def test_zeros_never_spoil_a_tensor(kind: str, zeros: str, tmp_path: Path) -> None:
    name = "blk.0.attn_q.weight"
    source = write_model(tmp_path / "in.gguf", name, (8, 512))
    truth = decoded(source, name)
    odd = entry(1, 512, 1)
    odd.sums[:] = np.random.RandomState(5).uniform(0.5, 1.5, 512)
    odd.sums[0, {"all": slice(None), "half": slice(0, 256), "some": slice(100, 132)}[zeros]] = 0
    errors = []
    for imatrix in (Imatrix({name: odd}, chunk_size=1), None):
        options = Options(imatrix=imatrix, overwrite=True)
        job = quantize_file(
            source, tmp_path / "out.gguf", "q8_0", options, tensor_types=[("attn_q", kind)]
        )
        got = decoded(tmp_path / "out.gguf", name)
        assert np.isfinite(got).all()
        errors.append(float(np.square(got - truth).mean()))
        if imatrix is not None:
            n = {"all": 512, "half": 256, "some": 32}[zeros]
            assert [t for t in job.warnings if f"{n} of 512 importances are odd ({n} zero)" in t]
    assert errors[0] <= errors[1] * (1 if zeros == "all" else 1.2)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_odd_importances(value: float, tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf", "blk.0.attn_q.weight", (2, 256))
    odd = entry(1, 256, 1)
    odd.sums[0, 9] = value
    options = Options(imatrix=Imatrix({"blk.0.attn_q.weight": odd}, chunk_size=1))
    if value != -1.0:
        with pytest.raises(QuantError, match=r"'blk.0.attn_q.weight': the importance of column 9"):
            quantize_file(source, tmp_path / "out.gguf", "q4_k_m", options)
        assert not (tmp_path / "out.gguf").exists()
    job = quantize_file(source, tmp_path / "out.gguf", "q4_k_m", options, allow_nonfinite=True)
    assert [text for text in job.warnings if "1 of 256 importances are odd" in text]
    mean = entry(1, 256, 1)
    others = np.delete(mean.sums[0], 9)
    mean.sums[0, 9] = others.mean(dtype=np.float64)
    options = Options(imatrix=Imatrix({"blk.0.attn_q.weight": mean}, chunk_size=1))
    quantize_file(source, tmp_path / "mean.gguf", "q4_k_m", options)
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "mean.gguf").read_bytes()


def test_a_matrix_of_another_model_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    wrong = Imatrix({NAME: entry(1, 128)}, ["news.txt"], 12, 512, path="other.gguf")
    message = (
        r"other.gguf \(news.txt, 12 chunks\) was made for another model: "
        r"'blk.0.ffn_up_exps.weight' has 128 importances, needs 256 or 1024"
    )
    with pytest.raises(ModelError, match=message):
        quantize_file(source, tmp_path / "out.gguf", "q4_0", imatrix=wrong)
    strangers = Imatrix({"blk.9.attn_q.weight": entry()}, chunk_size=1)
    with pytest.raises(ModelError, match="none of its entries is a tensor"):
        quantize_file(source, tmp_path / "out.gguf", "q4_0", imatrix=strangers)
    assert not (tmp_path / "out.gguf").exists()


def test_one_row_of_importances_serves_all_experts(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    one = entry(1, 256)
    several = Entry(np.repeat(one.sums, 4, axis=0), np.repeat(one.counts, 4))
    for target, weights in (("a", one), ("b", several)):
        imatrix = Imatrix({NAME: weights}, chunk_size=1)
        quantize_file(source, tmp_path / f"{target}.gguf", "iq4_nl", imatrix=imatrix)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_types_that_need_importances_say_for_which_tensors(tmp_path: Path) -> None:
    source = write_model(tmp_path / "in.gguf")
    with pytest.raises(QuantError, match=rf"IQ2_XS needs importances.*{NAME} \(iq2_xs\)"):
        quantize_file(source, tmp_path / "out.gguf", "iq2_xs")
    assert not (tmp_path / "out.gguf").exists()
