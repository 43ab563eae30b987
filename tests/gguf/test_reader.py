"""The reader against the `gguf` package's writer and reader, and ggml's C reader."""

from __future__ import annotations

import math
import struct
import time
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamapy.core.errors import FileFormatError, LlamapyError, ModelError
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.values import ValueType


def test_every_value_type_reads_as_the_official_package_wrote_it(official, sizes):
    with GGUFFile(official(), type_sizes=sizes) as file:
        meta = file.metadata
        assert (file.version, file.endian, file.alignment) == (3, "<", 32)
        assert meta["general.architecture"] == "llama"
        assert meta["test.uint8"] == 250
        assert meta["test.int8"] == -7
        assert meta["test.uint16"] == 65000
        assert meta["test.int16"] == -30000
        assert meta["test.uint32"] == 4000000000
        assert meta["test.int32"] == -2000000000
        assert meta["test.float32"] == float(np.float32(0.1))
        assert meta["test.uint64"] == 2**63 + 5
        assert meta["test.int64"] == -(2**62)
        assert meta["test.float64"] == 0.1
        assert meta["test.bool"] is True
        assert meta["test.string"] == "naïve 日本語\n\x00z"
        assert meta["test.strings"] == ["a", "", "日本", "x" * 300]
        assert meta.raw_strings("test.strings")[2] == "日本".encode()
        assert meta["test.ints"] == [1, -2, 3]
        assert meta["test.floats"][:2] == [0.5, math.inf]
        assert math.isnan(meta["test.floats"][2])
        assert meta["test.bools"] == [True, False]
        assert meta.array("test.bools").dtype == bool
        assert meta.array("test.bytes").tobytes() == bytes(range(256))
        assert meta.array("test.u64").tolist() == [1, 2**64 - 1]
        assert meta.type("test.uint16") == (ValueType.UINT16, None)
        assert meta.type("test.strings") == (ValueType.ARRAY, ValueType.STRING)
        assert meta.count("test.strings") == 4
        assert "nothing" not in meta
        assert len(meta) == len(list(meta)) == 19


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("alignment", [0, 64])
def test_tensors_are_those_of_the_official_reader(official, sizes, mmap, alignment):
    path = official(alignment=alignment)
    theirs = gguf.GGUFReader(path)
    with GGUFFile(path, mmap=mmap, type_sizes=sizes) as ours:
        assert ours.data_offset == theirs.data_offset
        assert [t.name for t in ours.tensors] == [t.name for t in theirs.tensors]
        for a, b in zip(ours.tensors, theirs.tensors):
            assert a.ne == tuple(int(n) for n in b.shape)
            assert (a.type_id, a.offset, a.n_bytes) == (
                int(b.tensor_type),
                b.data_offset,
                b.n_bytes,
            )
            data = ours.bytes(ours.tensor(a.name))
            assert data.tobytes() == b.data.tobytes()
            assert not data.flags.writeable
            assert a.offset % (alignment or 32) == 0
            assert a.n_elements == b.n_elements


def test_places_are_those_of_the_c_reader(official, sizes, c_gguf):
    path = official()
    with GGUFFile(path, type_sizes=sizes) as file:
        assert [(t.name, t.offset, t.n_bytes) for t in file.tensors] == c_gguf.tensors(path)


@pytest.mark.parametrize("mmap", [True, False])
def test_big_endian_files_give_the_same_values_and_blocks(official, sizes, mmap):
    little, big = official("little.gguf"), official("big.gguf", endian=">")
    with (
        GGUFFile(little, type_sizes=sizes) as a,
        GGUFFile(big, type_sizes=sizes, mmap=mmap) as b,
    ):
        assert b.endian == ">"
        for key in a.metadata:
            if key == "test.floats":  # holds a NaN
                assert np.array_equal(a.metadata.array(key), b.metadata.array(key), equal_nan=True)
            else:
                assert a.metadata[key] == b.metadata[key], key
        for one, other in zip(a.tensors, b.tensors):
            assert (one.name, one.ne, one.type_id) == (other.name, other.ne, other.type_id)
            assert a.bytes(one).tobytes() == b.bytes(other).tobytes(), one.name
        assert a.raw(a.tensors[0]).tobytes() != b.raw(b.tensors[0]).tobytes()


def test_version_2_reads_as_3(official, sizes, tmp_path):
    raw = bytearray(official().read_bytes())
    raw[4] = 2
    path = tmp_path / "v2.gguf"
    path.write_bytes(raw)
    with GGUFFile(path, type_sizes=sizes) as file:
        assert file.version == 2
        assert file.metadata["test.uint32"] == 4000000000


def test_arrays_outlive_the_file(official, sizes):
    with GGUFFile(official(), type_sizes=sizes) as file:
        data, before = file.bytes(file.tensors[0]), file.bytes(file.tensors[0]).tobytes()
        meta = file.metadata
    assert data.tobytes() == before
    assert meta["test.uint8"] == 250


def test_without_type_sizes_a_tensor_has_the_room_up_to_the_next(official, sizes):
    path = official()
    with GGUFFile(path) as free, GGUFFile(path, type_sizes=sizes) as known:
        for a, b in zip(free.tensors, known.tensors):
            assert a.offset == b.offset
            assert b.n_bytes <= a.n_bytes < b.n_bytes + 32


def test_text_that_is_not_utf8_is_kept(tmp_path):
    key, value = b"k\xff", b"\xfe\x00\xed\xa0\x80"
    body = struct.pack("<Q", len(key)) + key + struct.pack("<iQ", 8, len(value)) + value
    array = struct.pack("<Q", 1) + b"a" + struct.pack("<iiQQ", 9, 8, 1, 2) + b"\xc3("
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + body + array)
    with GGUFFile(path) as file:
        key_text, _ = file.metadata
        assert key_text.encode("utf-8", "surrogateescape") == key
        assert file.metadata[key_text].encode("utf-8", "surrogateescape") == value
        assert file.metadata.raw_strings("a") == [b"\xc3("]


def test_any_byte_but_zero_is_true(tmp_path):
    path = tmp_path / "bool.gguf"
    pair = struct.pack("<Q", 1) + b"b" + struct.pack("<iB", 7, 2)
    array = struct.pack("<Q", 1) + b"c" + struct.pack("<iiQ3B", 9, 7, 3, 0, 255, 1)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + pair + array)
    with GGUFFile(path) as file:
        assert file.metadata["b"] is True
        assert file.metadata["c"] == [False, True, True]


def test_tensors_of_another_file_are_refused(official, tmp_path, sizes):
    """A TensorInfo says where its own file has the bytes; in another one lies something else."""
    other = official("other.gguf", alignment=64)
    with GGUFFile(official(), type_sizes=sizes) as a, GGUFFile(other, type_sizes=sizes) as b:
        assert a.bytes("Q8_0").tobytes() == b.bytes("Q8_0").tobytes()
        with pytest.raises(ModelError, match="tensor 'Q8_0' is of another file"):
            a.bytes(b.tensor("Q8_0"))


def test_typed_access_says_what_is_there(official):
    with GGUFFile(official()) as file:
        with pytest.raises(LlamapyError, match=r"test\.ints.*array of INT32, not an array of str"):
            file.metadata.raw_strings("test.ints")
        with pytest.raises(LlamapyError, match=r"test\.uint8.*UINT8, not an array of numbers"):
            file.metadata.array("test.uint8")
        with pytest.raises(LlamapyError, match="no tensor 'nothing'"):
            file.tensor("nothing")
        assert "nothing" not in file
        assert "one" in file


@pytest.mark.parametrize("what", ["missing", "folder", "nul"])
def test_paths_that_are_no_files(tmp_path, what):
    path = {"missing": tmp_path / "no.gguf", "folder": tmp_path, "nul": "a\0b"}[what]
    with pytest.raises(FileFormatError, match="cannot be opened|is a folder"):
        GGUFFile(path)


def _vocabulary(path: Path, n: int, tail: bytes = b"") -> None:
    def strings(key: bytes, items: list[bytes]) -> bytes:
        head = struct.pack("<Q", len(key)) + key + struct.pack("<iiQ", 9, 8, len(items))
        return head + b"".join(struct.pack("<Q", len(item)) + item for item in items)

    tokens = strings(b"tokenizer.ggml.tokens", [b"token%d" % i + tail for i in range(n)])
    merges = strings(b"tokenizer.ggml.merges", [b"to ken%d" % i + tail for i in range(n)])
    key = b"tokenizer.ggml.scores"
    scores = struct.pack("<Q", len(key)) + key + struct.pack("<iiQ", 9, 6, n) + bytes(4 * n)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 3) + tokens + merges + scores)


@pytest.mark.parametrize("mmap", [True, False])
def test_a_large_vocabulary_opens_quickly(tmp_path, mmap):
    path = tmp_path / "vocabulary.gguf"
    _vocabulary(path, 150_000)
    start = time.process_time()  # not wall time: other processes must not fail the test
    with GGUFFile(path, mmap=mmap) as file:
        assert time.process_time() - start < 1.0
        assert file.metadata.count("tokenizer.ggml.merges") == 150_000
        assert file.metadata["tokenizer.ggml.tokens"][149_999] == "token149999"
        assert file.metadata.raw_strings("tokenizer.ggml.merges")[0] == b"to ken0"


def test_a_header_larger_than_the_first_read(tmp_path):
    """Unmapped, the header is read in growing pieces."""
    path = tmp_path / "large.gguf"
    _vocabulary(path, 20_000, b"." * 500)
    assert path.stat().st_size > 17 << 20
    with GGUFFile(path, mmap=False) as file:
        assert file.metadata["tokenizer.ggml.merges"][-1] == "to ken19999" + "." * 500
        assert file.metadata.array("tokenizer.ggml.scores").shape == (20_000,)
