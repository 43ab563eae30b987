"""Round trips of arbitrary content: ours to ours, ours to the `gguf` package, and back."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import gguf
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.gguf import limits, values
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.split import open_split, write_split
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter

V = ValueType
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
INTEGERS = (V.UINT8, V.INT8, V.UINT16, V.INT16, V.UINT32, V.INT32, V.UINT64, V.INT64)


def _scalars(kind: ValueType) -> st.SearchStrategy:
    if kind in INTEGERS:
        info = np.iinfo(values.dtype(kind, "<"))
        return st.integers(int(info.min), int(info.max))
    if kind is V.BOOL:
        return st.booleans()
    if kind is V.STRING:
        return TEXT
    return st.floats(width=32 if kind is V.FLOAT32 else 64)


PLAIN = st.sampled_from([kind for kind in ValueType if kind is not V.ARRAY])
PAIRS = PLAIN.flatmap(lambda kind: st.tuples(st.just((kind, None)), _scalars(kind)))
ARRAYS = PLAIN.flatmap(
    lambda kind: st.tuples(st.just((V.ARRAY, kind)), st.lists(_scalars(kind), max_size=9))
)
METADATA = st.dictionaries(
    TEXT.filter(lambda key: key and key != "general.alignment"), PAIRS | ARRAYS, max_size=6
)
NAMES = TEXT.filter(lambda name: len(name.encode()) < 64)
SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
TENSORS = st.dictionaries(NAMES, SHAPES, max_size=6)
ENDIAN = st.sampled_from("<>")
ALIGNMENT = st.sampled_from([1, 8, 32, 64, 4096])


def _alike(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_alike, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return a == b and type(a) is type(b)


def _data(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, math.prod(shape), np.uint8)


def _filled(path: Path, metadata, tensors, **options: object) -> GGUFWriter:
    writer = GGUFWriter(path, **options)
    for key, ((kind, element), value) in metadata.items():
        writer.add(key, value, kind, element)
    for name, shape in tensors.items():
        writer.add_tensor(name, shape, int(gguf.GGMLQuantizationType.I8), math.prod(shape))
    return writer


@given(METADATA, TENSORS, ENDIAN, ALIGNMENT, st.booleans())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read(metadata, tensors, endian, alignment, mmap):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        writer = _filled(path, metadata, tensors, endian=endian, alignment=alignment)
        data = {name: _data(shape, i) for i, (name, shape) in enumerate(tensors.items())}
        writer.write(data.__getitem__)
        with GGUFFile(path, mmap=mmap, type_sizes=lambda _: (1, 1)) as file:
            assert file.alignment == alignment
            for key, (types, value) in metadata.items():
                assert file.metadata.type(key) == types
                assert _alike(file.metadata[key], value), (key, file.metadata[key], value)
            assert len(file.metadata) == len(metadata) + (alignment != 32)
            assert {t.name: t.ne for t in file.tensors} == tensors
            for info in file.tensors:
                assert info.offset % alignment == 0
                assert np.array_equal(file.raw(info), data[info.name])


@given(METADATA, TENSORS)
@settings(max_examples=40, deadline=None)
def test_the_official_reader_reads_the_same(metadata, tensors):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.gguf"
        tensors = {name: shape or (1,) for name, shape in tensors.items() if math.prod(shape)}
        metadata = {k: v for k, v in metadata.items() if not k.startswith("GGUF.")}
        data = [_data(shape, i) for i, shape in enumerate(tensors.values())]
        _filled(path, metadata, tensors).write(data)
        theirs = gguf.GGUFReader(path)
        for key, ((kind, element), value) in metadata.items():
            field = theirs.fields[key]
            expected_types = [kind, element] if element is not None and value else [kind]
            assert [int(t) for t in field.types[:2]] == expected_types
            if value or not isinstance(value, list):
                assert _alike(field.contents(), value)
        for tensor, (name, shape), expected in zip(theirs.tensors, tensors.items(), data):
            assert tensor.name == name
            assert tuple(int(n) for n in tensor.shape) == shape
            assert tensor.data.tobytes() == expected.tobytes()


@given(TENSORS, st.integers(1, 4), st.booleans(), ALIGNMENT)
@settings(max_examples=40, deadline=None)
def test_a_split_set_holds_what_one_file_would(tensors, n, first_empty, alignment):
    with tempfile.TemporaryDirectory() as folder:
        writer = _filled(Path(folder) / "a.gguf", {}, tensors, alignment=alignment)
        writer.add("general.architecture", "x")
        data = {name: _data(shape, i) for i, (name, shape) in enumerate(tensors.items())}
        paths = write_split(
            writer,
            data.__getitem__,
            max_tensors=n,
            no_tensor_first_split=first_empty,
        )
        with open_split(paths[-1], type_sizes=lambda _: (1, 1)) as file:
            assert [t.name for t in file.tensors] == list(tensors)
            assert file.metadata["general.architecture"] == "x"
            for info in file.tensors:
                assert np.array_equal(file.raw(info), data[info.name])


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_text_survives_whatever_its_bytes(raw):
    assert values.to_bytes(values.to_text(raw)) == raw


@given(st.integers(0, 2**70), st.integers(0, 12).map(lambda n: 2**n))
def test_padding_is_the_next_multiple(n, alignment):
    padded = limits.padded(n, alignment)
    assert padded % alignment == 0
    assert n <= padded < n + alignment
