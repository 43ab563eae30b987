"""The writer against the bytes of the `gguf` package and of ggml's C writer; what it refuses."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamapy.core.errors import OutputError
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter

V = ValueType


def _copy(source: GGUFFile, target: Path, **options: object) -> GGUFWriter:
    """A writer that holds everything that `source` holds."""
    writer = GGUFWriter(target, alignment=source.alignment, endian=source.endian, **options)
    writer.add_all(source.metadata)
    for info in source.tensors:
        writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
    return writer


@pytest.mark.parametrize("endian", ["<", ">"])
@pytest.mark.parametrize("alignment", [0, 64])
def test_a_copy_has_the_bytes_of_the_official_writer(official, sizes, tmp_path, endian, alignment):
    path = official(endian=endian, alignment=alignment)
    with GGUFFile(path, type_sizes=sizes) as source:
        _copy(source, tmp_path / "copy.gguf").write(source.raw)
    assert (tmp_path / "copy.gguf").read_bytes() == path.read_bytes()


def test_values_given_from_python_have_the_bytes_of_the_official_writer(official, tmp_path):
    theirs = gguf.GGUFWriter(tmp_path / "theirs.gguf", "llama")
    ours = GGUFWriter(tmp_path / "ours.gguf")
    ours.add("general.architecture", "llama")
    for kind, value in (
        (V.UINT8, 255),
        (V.INT8, -128),
        (V.UINT16, 65535),
        (V.INT16, -32768),
        (V.UINT32, 2**32 - 1),
        (V.INT32, -(2**31)),
        (V.FLOAT32, 1 / 3),
        (V.UINT64, 2**64 - 1),
        (V.INT64, -(2**63)),
        (V.FLOAT64, 1 / 3),
        (V.BOOL, False),
        (V.STRING, "ü"),
    ):
        theirs.add_key_value(kind.name, value, gguf.GGUFValueType(int(kind)))
        ours.add(kind.name, value, kind)
    for key, values in (
        ("ints", [1, 2, -3]),
        ("floats", [0.1, 2.0]),
        ("strings", ["a", "é"]),
        ("bools", [True, False]),
    ):
        theirs.add_array(key, values)
        ours.add(key, values)
    theirs.add_key_value("bytes", b"\x00\xff", gguf.GGUFValueType.ARRAY)
    ours.add("bytes", b"\x00\xff")
    theirs.add_key_value("u16", [1, 2], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT16)
    ours.add("u16", np.array([1, 2], np.uint16))
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    theirs.add_tensor("t", data)
    ours.add_tensor("t", (3, 2), 0, data.nbytes)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(theirs, step)()
    ours.write([data])
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def test_with_trimmed_dimensions_a_copy_has_the_bytes_of_the_c_writer(
    official, sizes, tmp_path, c_gguf
):
    path = official()
    c_gguf.rewrite(path, tmp_path / "c.gguf")
    with GGUFFile(path, type_sizes=sizes) as source:
        # The C code keeps text up to its first zero byte only.
        writer = GGUFWriter(tmp_path / "ours.gguf", trim_dims=True)
        for key in source.metadata:
            kind, element = source.metadata.type(key)
            value = source.metadata[key]
            if kind is V.ARRAY and element is not V.STRING:
                value = source.metadata.array(key)
            writer.add(
                key, value.split("\0")[0] if isinstance(value, str) else value, kind, element
            )
        for info in source.tensors:
            writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
        writer.write(source.raw)
    ours, theirs = (tmp_path / "ours.gguf").read_bytes(), (tmp_path / "c.gguf").read_bytes()
    assert ours == theirs


@pytest.mark.parametrize(
    ("value", "kind", "element"),
    [
        (5, V.UINT32, None),
        (2**32 - 1, V.UINT32, None),
        (-1, V.INT32, None),
        (2**32, V.INT64, None),
        (2**63, V.UINT64, None),
        (True, V.BOOL, None),
        (0.5, V.FLOAT32, None),
        ("x", V.STRING, None),
        (np.float64(0.5), V.FLOAT64, None),
        (np.uint8(3), V.UINT8, None),
        ([1, -2], V.ARRAY, V.INT32),
        ([2**32 - 1], V.ARRAY, V.UINT32),
        ([2**40, -1], V.ARRAY, V.INT64),
        ([True], V.ARRAY, V.BOOL),
        (["a"], V.ARRAY, V.STRING),
        ([], V.ARRAY, V.INT32),
        (b"ab", V.ARRAY, V.UINT8),
        (np.zeros(2, np.int16), V.ARRAY, V.INT16),
        (np.zeros(2, np.float16), V.ARRAY, V.FLOAT32),
    ],
)
def test_types_are_guessed(tmp_path, value, kind, element):
    writer = GGUFWriter(tmp_path / "a.gguf")
    writer.add("k", value)
    writer.write()
    with GGUFFile(tmp_path / "a.gguf") as file:
        assert file.metadata.type("k") == (kind, element)
        read = file.metadata["k"]
        assert read == (list(value) if kind is V.ARRAY else value)


def test_the_official_reader_reads_what_we_write(tmp_path):
    writer = GGUFWriter(tmp_path / "a.gguf", alignment=128)
    writer.add("general.architecture", "llama")
    writer.add("strings", [b"\xff\x00", "é", ""])
    writer.add("empty", [], V.ARRAY, V.STRING)
    tensors = {"a": np.ones((3,), np.float32), "b": np.zeros((2, 0), np.float32)}
    tensors["c"] = np.arange(4, dtype=np.float32)
    for name, data in tensors.items():
        writer.add_tensor(name, data.shape[::-1], 0, data.nbytes)
    writer.write(tensors.__getitem__)
    theirs = gguf.GGUFReader(tmp_path / "a.gguf")
    assert theirs.alignment == 128
    field = theirs.fields["strings"]
    assert [bytes(field.parts[i]) for i in field.data] == [b"\xff\x00", "é".encode(), b""]
    for tensor in theirs.tensors:
        assert np.array_equal(tensor.data, tensors[tensor.name])
        assert tensor.data_offset % 128 == 0


def test_pieces_are_streamed_one_tensor_at_a_time(tmp_path):
    writer = GGUFWriter(tmp_path / "a.gguf")
    for i in range(3):
        writer.add_tensor(f"t{i}", (10,), 24, 10)
    asked, written = [], []

    def source(name):
        asked.append((name, written[-1] if written else 0))
        yield b"abcd"
        yield np.frombuffer(b"efgh", np.uint16)
        yield memoryview(b"ij")

    writer.write(source, on_done=written.append)
    assert asked == [("t0", 0), ("t1", 10), ("t2", 20)]
    with GGUFFile(tmp_path / "a.gguf") as file:
        for info in file.tensors:
            assert file.raw(info)[:10].tobytes() == b"abcdefghij"


def test_replace_moves_the_key_to_the_end(tmp_path):
    writer = GGUFWriter(tmp_path / "a.gguf")
    writer.add("a", 1)
    writer.add("b", 2)
    writer.replace("a", 3)
    writer.write()
    with GGUFFile(tmp_path / "a.gguf") as file:
        assert dict(file.metadata) == {"b": 2, "a": 3}
        assert list(file.metadata) == ["b", "a"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: (w.add("a", 1), w.add("a", 2)), "duplicate key 'a'"),
        (lambda w: w.add("", 1), "a key is empty"),
        (lambda w: w.add("a", 256, V.UINT8), "256 does not fit in UINT8"),
        (lambda w: w.add("a", -1, V.UINT64), "-1 does not fit in UINT64"),
        (lambda w: w.add("a", [1, 2**31], V.ARRAY, V.INT32), "2147483648 does not fit in INT32"),
        (lambda w: w.add("a", 1.5, V.INT32), "1.5 does not fit in INT32"),
        (lambda w: w.add("a", 1e39, V.FLOAT32), r"1e\+39 does not fit in FLOAT32"),
        (lambda w: w.add("a", "x", V.INT32), "x.* does not fit in INT32"),
        (lambda w: w.add("a", 5, V.STRING), "a int is not text"),
        (lambda w: w.add("a", "\ud800"), "not Unicode"),
        (lambda w: w.add("a", [[1]]), "a list cannot be a metadata value"),
        (lambda w: w.add("a", [1, "x"]), "cannot mix INT32, STRING"),
        (lambda w: w.add("a", 2**64), "18446744073709551616 does not fit in 64 bits"),
        (lambda w: w.add("a", None), "NoneType cannot be"),
        (lambda w: w.add("general.alignment", 13), "alignment 13 is not a power of two"),
        (lambda w: w.add("general.alignment", 64, V.INT32), "must be UINT32, not INT32"),
        (lambda w: (w.add_tensor("t", (1,), 0, 4), w.add_tensor("t", (1,), 0, 4)), "duplicate"),
        (lambda w: w.add_tensor("t" * 64, (1,), 0, 4), "more than 63 bytes"),
        (lambda w: w.add_tensor("é" * 32, (1,), 0, 4), "more than 63 bytes"),
        (lambda w: w.add_tensor("t", (1,) * 5, 0, 4), "5 dimensions, at most 4"),
        (lambda w: w.add_tensor("t", (-1,), 0, 4), "is -1, less than 0"),
        (lambda w: w.add_tensor("t", (2**40, 2**40), 0, 4), "more than 9223372036854775807"),
    ],
)
def test_what_no_reader_would_accept_is_refused_before_writing(tmp_path, call, message):
    writer = GGUFWriter(tmp_path / "a.gguf")
    with pytest.raises(OutputError, match=message):
        call(writer)
    assert os.listdir(tmp_path) == []


def _two_tensors(path: Path) -> GGUFWriter:
    writer = GGUFWriter(path)
    writer.add("a", 1)
    for name in ("x", "y"):
        writer.add_tensor(name, (8,), 24, 8)
    return writer


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError, OSError(5, "I/O error")])
def test_nothing_is_left_when_the_source_fails(tmp_path, fault):
    path = tmp_path / "a.gguf"
    path.write_bytes(b"as it was")

    def source(name):
        if name == "y":
            raise fault
        return bytes(8)

    expected = OutputError if isinstance(fault, OSError) else fault
    with pytest.raises(expected):
        _two_tensors(path).write(source)
    assert os.listdir(tmp_path) == ["a.gguf"]
    assert path.read_bytes() == b"as it was"


def test_nothing_is_left_without_nameless_files_either(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")

    def source(name):
        assert len(os.listdir(tmp_path)) == 1
        if name == "y":
            raise KeyboardInterrupt
        return bytes(8)

    with pytest.raises(KeyboardInterrupt):
        _two_tensors(tmp_path / "a.gguf").write(source)
    assert os.listdir(tmp_path) == []
    _two_tensors(tmp_path / "a.gguf").write([bytes(8), bytes(8)])
    assert os.listdir(tmp_path) == ["a.gguf"]


KILLED = """
import sys, time
from llamapy.gguf.writer import GGUFWriter
writer = GGUFWriter(sys.argv[1])
writer.add_tensor("t", (9,), 24, 9)
def source(name):
    print("writing", flush=True)
    time.sleep(60)
writer.write(source)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_killed_process_leaves_nothing(tmp_path, number):
    if number != signal.SIGINT:
        try:
            os.close(os.open(tmp_path, os.O_WRONLY | os.O_TMPFILE))
        except (AttributeError, OSError):
            pytest.skip("this file system has no files without a name")
    target = tmp_path / "a.gguf"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(target)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(number)
        process.communicate()
    assert process.returncode != 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("source", [[bytes(8)], [bytes(8), bytes(7)], [bytes(9), bytes(8)]])
def test_a_source_with_too_few_or_too_many_bytes_is_an_error(tmp_path, source):
    with pytest.raises(OutputError, match=r"no data for tensor 'y'|got [79] bytes, not 8"):
        _two_tensors(tmp_path / "a.gguf").write(source)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("how", ["same", "symlink", "hardlink", "dotted"])
def test_an_input_is_never_overwritten(official, sizes, tmp_path, how):
    path = official()
    before = path.read_bytes()
    target = {
        "same": path,
        "symlink": tmp_path / "s.gguf",
        "hardlink": tmp_path / "h.gguf",
        "dotted": tmp_path / "." / "x" / ".." / path.name,
    }[how]
    if how == "symlink":
        target.symlink_to(path)
    elif how == "hardlink":
        os.link(path, target)
    elif how == "dotted":
        (tmp_path / "x").mkdir()
    with GGUFFile(path, type_sizes=sizes) as source:
        writer = _copy(source, target)
        with pytest.raises(OutputError, match="is the input"):
            writer.write(source.raw, inputs=[path])
    assert path.read_bytes() == before
    assert not list(tmp_path.glob(".*tmp"))


def test_a_link_that_is_no_input_is_written_through(tmp_path):
    real = tmp_path / "real.gguf"
    real.write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to(real)
    _two_tensors(tmp_path / "link.gguf").write([bytes(8), bytes(8)])
    assert (tmp_path / "link.gguf").is_symlink()
    assert real.read_bytes()[:4] == b"GGUF"


def test_a_missing_folder_an_existing_file_and_odd_targets(tmp_path):
    data = [bytes(8), bytes(8)]
    with pytest.raises(OutputError, match="folder .*no.* does not exist"):
        _two_tensors(tmp_path / "no" / "a.gguf").write(data)
    (tmp_path / "a.gguf").write_bytes(b"x")
    with pytest.raises(OutputError, match="exists already .*--force"):
        _two_tensors(tmp_path / "a.gguf").write(data, overwrite=False)
    with pytest.raises(OutputError, match="is a folder"):
        _two_tensors(tmp_path).write(data)
    with pytest.raises(OutputError, match="not a regular file"):
        _two_tensors(Path("/dev/null")).write(data)
    with pytest.raises(OutputError, match="cannot be written: File name too long"):
        _two_tensors(tmp_path / ("n" * 300)).write(data)
    assert os.listdir(tmp_path) == ["a.gguf"]
    assert (tmp_path / "a.gguf").read_bytes() == b"x"


def test_space_is_checked_first_and_both_numbers_are_told(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(OutputError, match=r"needs 192 bytes, 100 bytes free"):
        _two_tensors(tmp_path / "a.gguf").write([bytes(8), bytes(8)])
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_up_meanwhile(tmp_path, monkeypatch):
    """ENOSPC while writing: the same message, and no file."""

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"No space left on device \(needs 192 bytes, \d+ bytes"):
        _two_tensors(tmp_path / "a.gguf").write([bytes(8), bytes(8)])
    assert os.listdir(tmp_path) == []


def test_mode_follows_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        _two_tensors(tmp_path / "a.gguf").write([bytes(8), bytes(8)])
    finally:
        os.umask(before)
    assert (tmp_path / "a.gguf").stat().st_mode & 0o777 == 0o640


def test_odd_versions_and_orders_are_refused(tmp_path):
    for options in ({"version": 1}, {"version": 4}, {"endian": "="}, {"version": 2, "endian": ">"}):
        with pytest.raises(OutputError):
            GGUFWriter(tmp_path / "a.gguf", **options)
    writer = GGUFWriter(tmp_path / "a.gguf", version=2)
    writer.write()
    assert struct.unpack("<4sIQQ", (tmp_path / "a.gguf").read_bytes()[:24]) == (b"GGUF", 2, 0, 0)
