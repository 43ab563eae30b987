"""Byte order: files turned around and back, block layouts against ggml's geometry."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest

from llamapy.core.errors import FileFormatError
from llamapy.gguf.endian import _BLOCKS, swap_blocks, swappable
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.writer import GGUFWriter

# What gguf-py's gguf_convert_endian can turn around.
OFFICIAL = ("F32", "F16", "BF16", "Q1_0", "Q4_0", "Q8_0", "Q4_K", "Q6_K", "TQ2_0", "MXFP4", "NVFP4")
REFUSED = ("Q5_0", "Q5_1", "IQ2_XXS", "IQ3_XXS", "IQ1_M")


@pytest.mark.parametrize("type_id", sorted(_BLOCKS))
def test_layouts_have_the_size_of_a_block(type_id, c_gguf):
    assert swappable(type_id).itemsize == c_gguf.block_bytes(type_id)


def test_the_official_set_can_be_turned_and_packed_types_are_refused():
    names = {kind.name: int(kind) for kind in gguf.GGMLQuantizationType}
    assert all(swappable(names[name]) is not None for name in OFFICIAL if name in names)
    assert all(swappable(names[name]) is None for name in REFUSED)


@pytest.mark.parametrize(
    ("kind", "places"),
    [("Q8_0", [(0, 2)]), ("Q4_K", [(0, 2), (2, 2)]), ("Q6_K", [(208, 2)]), ("F32", [(0, 4)])]
    + [("Q2_K", [(80, 2), (82, 2)]), ("TQ2_0", [(64, 2)]), ("F16", [(0, 2)]), ("MXFP4", [])],
)
def test_only_the_numbers_of_a_block_are_turned(kind, places, sizes):
    """Where the numbers lie is ggml's ggml-common.h."""
    type_id = int(gguf.GGMLQuantizationType[kind])
    size = sizes(type_id)[1]
    data = np.random.default_rng(3).integers(0, 256, 5 * size, np.uint8)
    expected = data.reshape(5, size).copy()
    for start, width in places:
        expected[:, start : start + width] = expected[:, start : start + width][:, ::-1]
    swapped = swap_blocks(data, swappable(type_id))
    assert np.array_equal(swapped, expected.ravel())
    assert np.array_equal(swap_blocks(swapped, swappable(type_id)), data)


def test_little_to_big_to_little_is_the_same_file(official, sizes, tmp_path):
    path = official()
    current = path
    for step, endian in enumerate("><"):
        with GGUFFile(current, type_sizes=sizes) as source:
            target = tmp_path / f"step{step}.gguf"
            writer = GGUFWriter(target, endian=endian)
            writer.add_all(source.metadata)
            for info in source.tensors:
                writer.add_tensor(info.name, info.ne, info.type_id, info.n_bytes)
            kinds = {t.name: swappable(t.type_id) for t in source.tensors}
            writer.write(lambda name, s=source, k=kinds: swap_blocks(s.raw(name), k[name]))
        current = target
    assert current.read_bytes() == path.read_bytes()
    assert (tmp_path / "step0.gguf").read_bytes() == official("big.gguf", endian=">").read_bytes()


def test_signalling_nans_survive_both_orders(tmp_path):
    nan = struct.pack("<I", 0x7FA00001)
    key = struct.pack("<Q", 1) + b"n" + struct.pack("<i", 6) + nan
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
    with GGUFFile(tmp_path / "a.gguf") as source:
        writer = GGUFWriter(tmp_path / "b.gguf", endian=">")
        writer.add_all(source.metadata)
        writer.write()
    with GGUFFile(tmp_path / "b.gguf") as file:
        assert file.metadata.payload("n", "<") == nan


def test_a_big_endian_type_that_cannot_be_turned_is_refused(tmp_path, sizes):
    writer = GGUFWriter(tmp_path / "a.gguf", endian=">")
    writer.add_tensor("t", (32,), int(gguf.GGMLQuantizationType.Q5_0), 22)
    writer.write([bytes(22)])
    with GGUFFile(tmp_path / "a.gguf", type_sizes=sizes) as file:
        assert file.raw(file.tensors[0]).nbytes == 22
        with pytest.raises(FileFormatError, match="'t': big-endian data of type 6 cannot be"):
            file.bytes(file.tensors[0])
