"""Split sets: the `gguf` package's are opened, ours have its bytes, and llama.cpp's rules."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from llamapy.core.errors import FileFormatError, OutputError, UsageError
from llamapy.gguf.header import TensorInfo
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.split import SplitFile, open_split, parse_size, plan, write_split
from llamapy.gguf.writer import GGUFWriter

DATA = {f"t{i}": np.full((4, 5), i, np.float32) for i in range(7)}  # 80 bytes, 96 when padded


def _theirs(folder: Path, name: str = "theirs.gguf", **options: object) -> list[Path]:
    before = set(folder.iterdir())
    writer = gguf.GGUFWriter(folder / name, "llama", **options)
    writer.add_uint32("llama.block_count", 7)
    for tensor, data in DATA.items():
        writer.add_tensor(tensor, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(set(folder.iterdir()) - before)


def _ours(folder: Path, name: str = "ours.gguf", alignment: int = 32, **options: object):
    writer = GGUFWriter(folder / name, alignment=alignment)
    writer.add("general.architecture", "llama")
    writer.add("llama.block_count", 7)
    for tensor, data in DATA.items():
        writer.add_tensor(tensor, data.shape[::-1], 0, data.nbytes)
    return [Path(p) for p in write_split(writer, DATA.__getitem__, **options)]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"split_max_tensors": 3}, {"max_tensors": 3}),
        ({"split_max_tensors": 1}, {"max_tensors": 1}),
        ({"split_max_tensors": 100}, {"max_tensors": 100}),
        ({"split_max_size": 160}, {"max_size": 160}),
        ({"split_max_size": 10}, {"max_size": 10}),
        (
            {"split_max_tensors": 3, "small_first_shard": True},
            {"max_tensors": 3, "no_tensor_first_split": True},
        ),
    ],
)
def test_converter_splits_have_the_bytes_of_the_official_package(tmp_path, theirs, ours):
    expected = _theirs(tmp_path, **theirs)
    got = _ours(tmp_path, rules="converter", **ours)
    assert [p.name.replace("ours", "theirs") for p in got] == [p.name for p in expected]
    for a, b in zip(got, expected):
        assert a.read_bytes() == b.read_bytes(), a.name


def test_gguf_split_rules(tmp_path, c_gguf):
    """Padded sizes count, and split.count comes last since it is set again (gguf-split.cpp)."""
    paths = _ours(tmp_path, max_size=192)
    assert [p.name for p in paths] == [f"ours-{i:05d}-of-00004.gguf" for i in range(1, 5)]
    for i, path in enumerate(paths):
        assert c_gguf.accepts(path)
        with GGUFFile(path) as part:
            assert list(part.metadata)[-3:] == ["split.no", "split.tensors.count", "split.count"]
            assert part.metadata["split.no"] == i
            assert part.metadata["split.tensors.count"] == 7
            assert len(part.metadata) == (5 if i == 0 else 3)
            assert len(part.tensors) == (1 if i == 3 else 2)


def test_plan_counts_padded_or_bare_bytes():
    tensors = [TensorInfo(f"t{i}", (20,), 0, 0, 80) for i in range(4)]

    def sizes(**options):
        return [len(part) for part in plan(tensors, **options)]

    assert sizes(max_size=160) == [1, 1, 1, 1]
    assert sizes(max_size=160, rules="converter") == [2, 2]
    assert sizes(max_size=192) == [2, 2]
    assert sizes(max_size=255, alignment=128) == [1, 1, 1, 1]
    assert sizes(max_tensors=3) == [3, 1]
    assert sizes(max_tensors=3, no_tensor_first_split=True) == [0, 3, 1]
    assert sizes(max_size=1) == [1, 1, 1, 1]
    for wrong in ({}, {"max_size": 1, "max_tensors": 1}, {"max_size": -1}):
        with pytest.raises(UsageError):
            plan(tensors, **wrong)


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("2G", 2_000_000_000), ("500M", 500_000_000), ("7k", 7000), ("12", 12)]
)
def test_sizes_are_decimal(text, n_bytes):
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "0M", "G", "1.5G", "-1M", "1T", "1 M"])
def test_other_sizes_are_refused(text):
    with pytest.raises(UsageError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize("entry", [0, 1, 2])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_set_opens_through_any_part(tmp_path, sizes, entry, mmap):
    paths = _theirs(tmp_path, split_max_tensors=3)
    with open_split(paths[entry], type_sizes=sizes, mmap=mmap) as file:
        assert isinstance(file, SplitFile)
        assert file.metadata["llama.block_count"] == 7
        assert [t.name for t in file.tensors] == list(DATA)
        for info in file.tensors:
            assert file.bytes(info).tobytes() == DATA[info.name].tobytes()
        assert file.tensor("t6").part == 2
        assert "t6" in file
        assert "t7" not in file
        assert file.n_bytes == sum(p.stat().st_size for p in paths)


def test_alignment_holds_in_every_part(tmp_path, sizes, c_gguf):
    paths = _ours(tmp_path, alignment=256, max_tensors=2)
    with open_split(paths[1], type_sizes=sizes) as file:
        assert all(part.alignment == 256 for part in file.parts)
        assert all(t.offset % 256 == 0 for t in file.tensors)
    assert all(c_gguf.accepts(path) for path in paths)


def test_all_missing_parts_are_named_at_once(tmp_path, sizes):
    paths = _theirs(tmp_path, split_max_tensors=1)
    for i in (1, 4):
        paths[i].unlink()
    with pytest.raises(FileFormatError) as error:
        open_split(paths[3], type_sizes=sizes)
    text = str(error.value)
    assert "2 of 7 parts missing" in text
    assert "theirs-00002-of-00007.gguf, theirs-00005-of-00007.gguf" in text
    assert "theirs-00003" not in text


def test_a_plain_file_may_be_named_like_a_part(official, sizes, tmp_path):
    path = official("m-00001-of-00003.gguf")
    with open_split(path, type_sizes=sizes) as file:
        assert isinstance(file, GGUFFile)


def test_numbers_inside_count_not_those_in_names(tmp_path, sizes):
    a, b, _ = _theirs(tmp_path, split_max_tensors=3)
    spare = tmp_path / "spare"
    a.rename(spare)
    b.rename(a)
    spare.rename(b)
    with open_split(a, type_sizes=sizes) as file:
        assert [t.name for t in file.tensors] == list(DATA)
        assert file.metadata["llama.block_count"] == 7


def test_a_renamed_part_says_how_it_should_be_called(tmp_path, sizes):
    paths = _theirs(tmp_path, split_max_tensors=3)
    other = paths[1].rename(tmp_path / "other.gguf")
    with pytest.raises(FileFormatError, match=r"part 2 of 3.*rename.*-00002-of-00003\.gguf"):
        open_split(other, type_sizes=sizes)


def test_parts_joined_with_cat(tmp_path, sizes):
    paths = _theirs(tmp_path, split_max_tensors=3)
    joined = tmp_path / "joined.gguf"
    joined.write_bytes(b"".join(p.read_bytes() for p in paths))
    with pytest.raises(FileFormatError, match="second GGUF begins.*joined with cat") as error:
        open_split(joined, type_sizes=sizes)
    assert error.value.offset == paths[0].stat().st_size
    for first in (True, False):  # also when the first part has no tensors at all
        paths = _ours(tmp_path, f"o{first}.gguf", max_tensors=3, no_tensor_first_split=first)
        joined.write_bytes(b"".join(p.read_bytes() for p in paths))
        with pytest.raises(FileFormatError, match="joined with cat"):
            open_split(joined, type_sizes=sizes)


def test_the_same_tensor_in_two_parts(tmp_path, sizes):
    for i, name in enumerate(("a", "a")):
        writer = GGUFWriter(tmp_path / f"s-0000{i + 1}-of-00002.gguf")
        for key, value in (("no", i), ("count", 2)):
            writer.add(f"split.{key}", np.uint16(value))
        writer.add("split.tensors.count", np.int32(2))
        writer.add_tensor(name, (8,), 24, 8)
        writer.write([bytes(8)])
    path = tmp_path / "s-00002-of-00002.gguf"
    with pytest.raises(FileFormatError, match=r"tensor 'a': is also in s-00001-of-00002\.gguf"):
        open_split(path, type_sizes=sizes)
    with open_split(path, type_sizes=sizes, lenient=True) as file:
        assert len(file.tensors) == 2
        assert len(file.problems) == 1


def _part(path: Path, **split: object) -> Path:
    writer = GGUFWriter(path)
    for key, value in split.items():
        writer.add(f"split.{key}", value)
    writer.write()
    return path


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ({"no": 0, "count": 2}, {"no": 0, "count": 2}, "split.no: 0, as .*00001-of.* has too"),
        ({"no": 0, "count": 2}, {"no": 1, "count": 3}, "a set of 3 parts, not of 2"),
        ({"no": 5, "count": 2}, {"no": 1, "count": 2}, "split.no: part 5 of 2"),
        ({"no": 0, "count": "x"}, {}, "must be an integer but is STRING"),
    ],
)
def test_sets_that_contradict_themselves(tmp_path, one, two, message):
    path = _part(tmp_path / "s-00001-of-00002.gguf", **one)
    _part(tmp_path / "s-00002-of-00002.gguf", **two)
    with pytest.raises(FileFormatError, match=message):
        open_split(path)


def test_the_number_of_tensors_must_be_right(tmp_path):
    _part(tmp_path / "s-00002-of-00002.gguf", no=1, count=2)
    one = {"no": 0, "count": 2, "tensors.count": 9}
    path = _part(tmp_path / "s-00001-of-00002.gguf", **one)
    with pytest.raises(FileFormatError, match="2 parts have 0 tensors, 9 were expected"):
        open_split(path)


def test_a_huge_count_gives_a_short_message(tmp_path):
    path = _part(tmp_path / "s-00001-of-65535.gguf", no=0, count=65535)
    with pytest.raises(FileFormatError, match="65534 of 65535 parts missing.*and 65434 more") as e:
        open_split(path)
    assert len(str(e.value)) < 5000


def test_a_failed_split_leaves_nothing(tmp_path):
    def source(name):
        if name == "t5":
            raise KeyboardInterrupt
        return DATA[name]

    writer = GGUFWriter(tmp_path / "a.gguf")
    for tensor, data in DATA.items():
        writer.add_tensor(tensor, data.shape[::-1], 0, data.nbytes)
    with pytest.raises(KeyboardInterrupt):
        write_split(writer, source, max_tensors=2)
    assert os.listdir(tmp_path) == []


def test_parts_never_overwrite_an_input(tmp_path):
    paths = _ours(tmp_path, max_tensors=3)
    before = [p.read_bytes() for p in paths]
    with pytest.raises(OutputError, match="is the input"):
        _ours(tmp_path, max_tensors=3, inputs=paths)
    with pytest.raises(OutputError, match="exists already"):
        _ours(tmp_path, max_tensors=3, overwrite=False)
    assert [p.read_bytes() for p in paths] == before
    assert len(os.listdir(tmp_path)) == 3
