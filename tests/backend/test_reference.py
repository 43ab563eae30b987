"""The reference backend: numbers to and from memory, what it reads, what it keeps."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import quantize as gguf_quantize

from llamapy.backend.backend import Buffer, BufferType, aligned
from llamapy.backend.reference import Reference
from llamapy.backend.reference.values import Rows, blocks, decode, encode
from llamapy.core.errors import QuantError, UsageError
from llamapy.graph import Builder, Tensor
from llamapy.quants import codec

HOST = BufferType("cpu")
SPECIAL = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 65504, 65519, 65520, 1e-8, 3e38, 2**-24, 1e-40]


def numbers(n: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(n) * np.exp2(rng.integers(-20, 20, n))
    return np.concatenate([SPECIAL, drawn, 1 + np.arange(4) * 2.0**-8]).astype("f4")


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_rounding_is_that_of_gguf(name):
    x = numbers(2000)
    with np.errstate(over="ignore"):
        got = encode(codec.get(name), x)
        want = gguf_quantize(x, GGMLQuantizationType[name.upper()])
    got, want = (
        decode(codec.get(name), np.ascontiguousarray(a).view(codec.get(name).block))
        for a in (got, want)
    )
    assert np.array_equal(got, want, equal_nan=True)
    assert np.array_equal(np.signbit(got[:2]), [False, True])


def test_quantized_rows_are_those_of_gguf():
    x = np.random.default_rng(1).standard_normal((2, 3, 64)).astype("f4")
    got = encode(codec.get("q8_0"), x)
    assert got.shape == (2, 3, 2)
    want = gguf_quantize(x, GGMLQuantizationType.Q8_0)
    assert np.array_equal(got.view(np.uint8).reshape(want.shape), want)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "i32", "q8_0", "iq2_xxs", "iq1_s"])
def test_types_that_cannot_be_written_are_said_to_be_unsupported(name):
    """Some need to be told what matters in the numbers."""
    kind = codec.get(name)
    if Reference().supports_op(Builder().cast(Tensor("f32", (256, 2)), name)):
        assert encode(kind, np.ones((2, 256), "f4")).dtype == kind.block
    else:
        assert name.startswith("iq")
        with pytest.raises(QuantError, match=name):
            encode(kind, np.ones((2, 256), "f4"))


def test_integers_pass_unchanged():
    big = np.array([[2**53 + 1, -5]])
    assert encode(codec.get("i64"), big)[0, 0] == 2**53 + 1
    assert decode(codec.get("i64"), encode(codec.get("i64"), big))[0, 0] == 2**53 + 1


def placed(kind: str, ne: tuple[int, ...], memory: BufferType, *, weights: bool = True) -> Tensor:
    tensor = Tensor(kind, ne)
    Buffer(memory, aligned(tensor.n_bytes), weights=weights).place(tensor, 0)
    tensor.buffer.owner[:] = np.random.default_rng(2).integers(0, 100, tensor.n_bytes)
    return tensor


def test_rows_are_decoded_where_they_are_indexed():
    table = placed("q4_0", (64, 7, 2), HOST)
    whole = decode(table.kind, blocks(table))
    assert np.array_equal(Rows(table)[0, 1], whole[0, 1])
    index = (np.array([[0]]), np.array([[1], [0]]), np.array([[6, 2], [3, 3]]))
    assert np.array_equal(Rows(table)[index], whole[index]) and Rows(table).shape == whole.shape


def test_memory_that_it_reads():
    mapped, other = BufferType("mapped"), BufferType("acc", host=False)
    for kind, plain, device in ((mapped, True, False), (other, False, False)):
        assert Reference().supports_buffer(kind) == plain
        assert Reference(reads_host=False).supports_buffer(kind) == device
    assert Reference(reads_host=False).supports_buffer(Reference.buffer_type)
    assert not Reference.buffer_type.host


def product(backend: Reference, w: Tensor) -> np.ndarray:
    g = Builder()
    x = placed("f32", (w.ne[0], 2), HOST, weights=False)
    x.buffer.owner.view("f4")[:] = 1.0
    y = g.mul_mat(w, x)
    backend.allocate(y.n_bytes).place(y, 0)
    backend.compile([y]).run()
    return blocks(y).copy()


def test_weights_are_decoded_once_and_kept_as_long_as_their_buffer():
    backend, w = Reference(), placed("q4_0", (64, 8), HOST)
    first = product(backend, w)
    assert backend.weights.n_bytes == 64 * 8 * 4
    w.buffer.owner[:] = 0  # it must not look again
    assert np.array_equal(product(backend, w), first)
    del w
    gc.collect()
    assert backend.weights.n_bytes == 0


def test_the_cache_keeps_to_its_limit():
    backend, w = Reference(cache_bytes=64 * 8 * 4 + 1), placed("q4_0", (64, 8), HOST)
    more = placed("q4_1", (64, 8), HOST)
    want = product(Reference(), more)
    product(backend, w)
    assert np.array_equal(product(backend, more), want)
    assert backend.weights.n_bytes == 64 * 8 * 4


def test_what_is_no_weight_is_read_anew():
    backend, w = Reference(), placed("q4_0", (64, 8), HOST, weights=False)
    first = product(backend, w)
    w.buffer.owner[:] = 0
    assert not np.array_equal(product(backend, w), first) and backend.weights.n_bytes == 0


def test_read_only_memory_can_be_read():
    w = placed("f16", (32, 3), HOST)
    w.buffer.owner.flags.writeable = False
    assert product(Reference(), w).shape == (1, 1, 2, 3)


def test_overlapping_copies_within_a_cache():
    """Rows moved by two within one tensor, as when a cache is tidied."""
    g, cache = Builder(), placed("f32", (8, 6), HOST, weights=False)
    before = blocks(cache).copy()
    node = g.cpy(g.view(cache, (8, 4), cache.nb), g.view(cache, (8, 4), cache.nb, 64))
    g.expand(node)
    for tensor in g.graph.nodes:
        tensor.buffer, tensor.data = cache.buffer, cache.data + tensor.view_offset
    Reference().compile([node]).run()
    assert np.array_equal(blocks(cache)[0, 0, 2:], before[0, 0, :4])
    assert np.array_equal(blocks(cache)[0, 0, :2], before[0, 0, :2])


def test_free_memory_is_less_than_all():
    free, total = Reference().memory()
    assert 0 <= free <= total


def test_the_limit_can_be_set_from_outside(monkeypatch):
    monkeypatch.setenv("LLAMAPY_REFERENCE_CACHE", "7")
    assert Reference().weights.limit == 7 << 20
    monkeypatch.setenv("LLAMAPY_REFERENCE_CACHE", "all of it")
    with pytest.raises(UsageError, match="all of it"):
        Reference()
