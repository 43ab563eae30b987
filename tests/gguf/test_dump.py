"""`llamapy dump` against what the `gguf` package reads, and its manners on stdout and stderr."""

from __future__ import annotations

import hashlib
import json
import resource
import struct
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamapy.cli import listing
from llamapy.cli.main import run
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.split import write_split
from llamapy.gguf.writer import GGUFWriter


def _no_constants(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@pytest.fixture
def dump(capfdbinary):
    """Run the command: exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, bytes, str]:
        code = run(["dump", *map(str, arguments)])
        out, err = capfdbinary.readouterr()
        return code, out, err.decode()

    return call


@pytest.fixture
def dump_json(dump):
    def call(*arguments: object, code: int = 0) -> dict:
        got, out, _ = dump(*arguments, "--json")
        assert got == code
        return json.loads(out, parse_constant=_no_constants)

    return call


def test_json_says_what_the_official_reader_reads(official, dump_json):
    path = official(alignment=64)
    theirs, ours = gguf.GGUFReader(path), dump_json(path)
    assert set(ours) == {"file", "metadata", "tensors", "totals"}
    for key, field in theirs.fields.items():
        if key.startswith("GGUF.") or key == "test.floats":
            continue
        assert ours["metadata"][key] == field.contents(), key
    assert ours["metadata"]["test.floats"] == [0.5, "Infinity", "NaN"]
    for a, b in zip(ours["tensors"], theirs.tensors, strict=True):
        assert set(a) == {"name", "type", "shape", "n_bytes", "offset"}
        assert (a["name"], a["n_bytes"], a["offset"]) == (b.name, b.n_bytes, b.data_offset)
        assert a["type"].upper() == b.tensor_type.name
        assert a["shape"] == b.shape.tolist()
    assert ours["file"]["alignment"] == 64
    assert ours["file"]["data_offset"] == theirs.data_offset
    totals = ours["totals"]
    assert totals["tensors"] == len(theirs.tensors)
    assert totals["parameters"] == sum(int(t.n_elements) for t in theirs.tensors)
    assert totals["n_bytes"] == sum(t.n_bytes for t in theirs.tensors)
    assert totals["bits_per_weight"] == round(8 * totals["n_bytes"] / totals["parameters"], 4)
    assert sum(t["n_bytes"] for t in totals["by_type"].values()) == totals["n_bytes"]
    assert totals["by_type"]["q4_0"] == {"tensors": 1, "parameters": 256, "n_bytes": 144}


def test_the_listing_has_every_key_and_tensor(official, dump):
    path = official()
    code, out, err = dump(path)
    assert (code, err) == (0, "")
    lines = out.decode().splitlines()
    assert not any(line.endswith(" ") for line in lines)
    by_first = {line.split()[0]: line.split() for line in reversed(lines) if line}
    theirs = gguf.GGUFReader(path)
    for key in theirs.fields:
        assert key in by_first or key.startswith("GGUF.")
    for tensor in theirs.tensors:
        assert by_first[tensor.name][-1] == str(tensor.data_offset)
    assert by_first["test.float32"][1:] == ["f32", "0.1"]
    assert by_first["test.bool"][1:] == ["bool", "true"]
    assert by_first["test.bools"][1:] == ["bool[2]", "[true,", "false]"]
    assert by_first["test.string"][1:] == ["str", "naïve", "日本語\\n\\x00z"]
    assert by_first["f16.weight"][1:6] == ["f16", "7", "x", "1", "x"]
    assert by_first["all"][1] == "6"


def test_no_tensors(official, dump, dump_json):
    path = official()
    _, out, _ = dump(path, "--no-tensors")
    assert b"f16.weight" not in out
    assert b"test.uint8" in out
    found = dump_json(path, "--no-tensors")
    assert found["tensors"] == []
    assert found["totals"]["tensors"] == 6


def _long(path: Path, n: int = 1000) -> Path:
    writer = GGUFWriter(path)
    writer.add("long", [f"w{i}" for i in range(n)])
    writer.add("text", "line\n" * 200)
    writer.add("odd", b"a\x1b[2J\xff".decode("utf-8", "surrogateescape"))
    writer.add("items", ["a\nb", "", "é"])
    writer.write()
    return path


def test_long_values_are_shortened_unless_full(tmp_path, dump, dump_json):
    path = _long(tmp_path / "a.gguf")
    code, out, _ = dump(path)
    assert b"str[1000]" in out
    assert b'"w7", ...]' in out
    assert b"w8" not in out
    assert b"(1000 characters)" in out
    assert b"w999" in dump(path, "--full")[1]
    first = [f"w{i}" for i in range(8)]
    short = dump_json(path)["metadata"]
    assert short["long"] == {"type": "str", "count": 1000, "first": first}
    full = dump_json(path, "--full")["metadata"]
    assert full["long"] == [f"w{i}" for i in range(1000)]
    assert full["text"] == short["text"] == "line\n" * 200


def test_one_value(tmp_path, dump, dump_json):
    path = _long(tmp_path / "a.gguf")
    assert dump(path, "--kv", "text") == (0, b"line\n" * 200, "")
    assert dump(path, "--kv", "odd")[1] == b"a\x1b[2J\xff"  # a pipe gets the very bytes
    assert dump(path, "--kv", "items")[1] == '"a\\nb"\n""\n"é"\n'.encode()
    code, out, err = dump(path, "--kv", "long")
    assert (code, out.count(b"\n")) == (0, 8)
    assert "992 elements more" in err
    assert dump(path, "--kv", "long", "--full")[1].count(b"\n") == 1000
    assert dump_json(path, "--kv", "items") == ["a\nb", "", "é"]
    assert dump_json(path, "--kv", "odd") == "a\x1b[2J\\udcff"
    code, out, err = dump(path, "--kv", "itens")
    assert (code, out) == (1, b"")
    assert "no key 'itens' (did you mean items?)" in err


def test_numbers_as_one_value(official, dump):
    path = official()
    for key, text in (("uint64", str(2**63 + 5)), ("float32", "0.1"), ("bool", "true")):
        assert dump(path, "--kv", f"test.{key}")[1].decode() == text + "\n"
    assert dump(path, "--kv", "test.floats")[1] == b"0.5\ninf\nnan\n"


def test_hashes_are_those_of_the_bytes(official, dump, dump_json):
    path = official()
    expected = {
        t.name: hashlib.sha256(t.data.tobytes()).hexdigest() for t in gguf.GGUFReader(path).tensors
    }
    assert {t["name"]: t["sha256"] for t in dump_json(path, "--hash")["tensors"]} == expected
    _, out, _ = dump(path, "--hash")
    for name, digest in expected.items():
        assert f"{digest}  {name}\n" in out.decode()


def _changed(source: Path, target: Path) -> None:
    with GGUFFile(source) as file:
        writer = GGUFWriter(target)
        writer.add_all(file.metadata, skip=("test.int8", "test.strings", "test.uint16"))
        writer.add("test.uint16", 65000)  # the same number of another type
        writer.add("test.strings", ["a", "", "other", "x" * 300])
        writer.add("new", 1)
        kinds = {t.name: t for t in gguf.GGUFReader(source).tensors}
        data = {}
        for name, t in kinds.items():
            if name != "i8":
                data[name] = t.data.tobytes()
                ne = tuple(int(n) for n in t.shape)
                writer.add_tensor(name, ne + (1,) * (4 - len(ne)), int(t.tensor_type), t.n_bytes)
        data["f32.weight"] = bytes(4) + data["f32.weight"][4:]
        writer.write(data.__getitem__)


def test_differences(official, tmp_path, dump, dump_json):
    path, other = official(), tmp_path / "other.gguf"
    _changed(path, other)
    code, out, err = dump(path, "--diff", path)
    assert (code, err) == (0, "")
    assert b"metadata: equal" in out
    assert b"tensors: equal" in out
    found = dump_json(path, "--diff", other, code=1)
    assert {d["name"]: (d["a"], d["b"]) for d in found["metadata"]} == {
        "test.int8": ("i8 -7", "-"),
        "test.uint16": ("u16 65000", "u32 65000"),
        "test.strings": ("[2] = '日本'", "[2] = 'other'"),
        "new": ("-", "u32 1"),
    }
    assert {d["name"]: (d["a"], d["b"]) for d in found["tensors"]} == {
        "f32.weight": ("f32 5 x 3", "4 of 60 bytes differ"),
        "i8": ("i8 5", "-"),
    }
    code, out, err = dump(path, "--diff", other)
    assert (code, err) == (1, "")
    assert b"tensors: 2 differ" in out
    assert b"test.uint16" in out


@pytest.mark.parametrize(
    ("a", "b", "texts"),
    [
        ("x" * 100 + "one", "x" * 100 + "two", ("[100] ...xxxxxxxxone", "[100] ...xxxxxxxxtwo")),
        ("x" * 100, "x" * 101, ("[100] ...xxxxxxxx", "[100] ...xxxxxxxxx")),
        ("abc", "abd", ("str abc", "str abd")),
        ([1, 2, 3], [1, 5, 3], ("[1] = 2", "[1] = 5")),
        ([1, 2], [1], ("i32[2] [1, 2]", "i32[1] [1]")),
        ([1], [1.0], ("i32[1] [1]", "f32[1] [1.0]")),
        ([np.nan, 1.0], [np.nan, 2.0], ("[1] = 1.0", "[1] = 2.0")),
        (1, True, ("u32 1", "bool true")),
        (np.float32(np.nan), -np.float32(np.nan), ("f32 nan", "f32 nan")),
    ],
)
def test_values_are_shown_from_where_they_part(tmp_path, dump_json, a, b, texts):
    for name, value in (("a", a), ("b", b)):
        writer = GGUFWriter(tmp_path / name)
        writer.add("k", value)
        writer.write()
    (found,) = dump_json(tmp_path / "a", "--diff", tmp_path / "b", code=1)["metadata"]
    assert (found["a"], found["b"]) == texts


def test_a_difference_without_tensors(official, tmp_path, dump, dump_json):
    path, other = official(), tmp_path / "other.gguf"
    _changed(path, other)
    code, out, _ = dump(path, "--diff", other, "--no-tensors")
    assert code == 1
    assert b"tensors" not in out
    assert set(dump_json(path, "--diff", other, "--no-tensors", code=1)) == {"metadata"}


def test_byte_order_is_no_difference(official, dump):
    little, big = official("l.gguf"), official("b.gguf", endian=">")
    assert dump(little, "--diff", big)[0] == 0


def test_text_that_is_not_utf8_everywhere(tmp_path, dump, dump_json):
    key, value = b"k\xff\x1b[2J", b"\xfe\x07"
    pair = struct.pack("<Q", len(key)) + key + struct.pack("<iQ", 8, len(value)) + value
    path = tmp_path / "odd.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + pair)
    code, out, err = dump(path)
    assert (code, err) == (0, "")
    assert b"\x1b" not in out
    assert b"\x07" not in out
    assert dump_json(path)["metadata"] == {"k\\udcff\x1b[2J": "\\udcfe\x07"}


def _set(folder: Path) -> list[Path]:
    writer = GGUFWriter(folder / "m.gguf")
    writer.add("general.architecture", "llama")
    data = {f"t{i}": np.full(8, i, np.float32) for i in range(3)}
    for name in data:
        writer.add_tensor(name, (8,), 0, 32)
    return [Path(p) for p in write_split(writer, data.__getitem__, max_tensors=1)]


def test_split_sets(tmp_path, dump, dump_json):
    paths = _set(tmp_path)
    found = dump_json(paths[1])
    assert [t["name"] for t in found["tensors"]] == ["t0", "t1", "t2"]
    assert found["metadata"]["general.architecture"] == "llama"
    assert [t["part"] for t in found["tensors"]] == [0, 1, 2]
    assert found["file"]["parts"] == 3
    alone = dump_json(paths[1], "--alone")
    assert [t["name"] for t in alone["tensors"]] == ["t1"]
    paths[2].unlink()
    code, out, err = dump(paths[1])
    assert (code, out) == (1, b"")
    assert "1 of 3 parts missing: m-00003-of-00003.gguf" in err
    assert err.count("\n") == 1
    assert dump(paths[1], "--alone")[0] == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "b"],
        [],
        ["a", "--kv", "x", "--hash"],
        ["a", "--kv", "x", "--diff", "b"],
        ["a", "--hash", "--no-tensors"],
        ["a", "--nothing"],
    ],
)
def test_misuse(dump, arguments):
    code, out, err = dump(*arguments)
    assert (code, out) == (2, b"")
    assert err.count("\n") == 1


def test_many_warnings_are_cut(tmp_path, dump, dump_json):
    pair = struct.pack("<Q", 1) + b"k" + struct.pack("<iB", 0, 1)
    path = tmp_path / "many.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 50) + pair * 50)
    code, _, err = dump(path)
    assert code == 1
    assert err.count("\n") == 21
    assert "29 warnings more" in err
    assert len(dump_json(path, code=1)["warnings"]) == 49


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB")]
    + [(5 << 30, "5.0 GiB"), (3 << 50, "3,072.0 TiB")],
)
def test_sizes_for_people(n, text):
    assert listing.size(n) == text


def test_wide_characters_are_fitted_by_columns():
    (row,) = listing.fitted([("k", "日" * 20_000)])
    assert len(row[1]) < 5001


LOADED = "import sys; from llamapy.cli.main import run; code = run(sys.argv[1:]); " + (
    "heavy = [m for m in ('numba', 'llvmlite', 'llamapy.runtime') if m in sys.modules]; "
    "sys.exit(f'loaded {heavy}' if heavy else code)"
)


def _process(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", LOADED, "dump", *map(str, arguments)],
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_the_compiler_is_never_loaded(official):
    done = _process(official(), "--hash")
    assert done.returncode == 0, done.stderr


@pytest.mark.model
def test_a_real_model(gemma3):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = _process(gemma3, "--json")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["metadata"]["general.architecture"] == "gemma3"
    assert found["metadata"]["tokenizer.ggml.tokens"]["count"] == 262144
    assert len(found["tensors"]) == 236
    assert found["totals"]["parameters"] == 268_098_176
    # About 0.6 s of CPU on a quiet machine; twice that and more with busy neighbours.
    assert after.ru_utime - before.ru_utime < 2.5


def test_a_stdout_that_cannot_say_everything(official):
    """Characters that the terminal's encoding lacks are escaped."""
    done = subprocess.run(
        [sys.executable, "-m", "llamapy", "dump", str(official())],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"na\\xefve \\u65e5\\u672c\\u8a9e\\n" in done.stdout
