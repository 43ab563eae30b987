"""Geometry of tensors and views, against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.backend.backend import Buffer, BufferType, aligned
from llamapy.backend.reference.values import blocks, decode
from llamapy.core.errors import QuantError, ShapeError
from llamapy.graph import Builder, Tensor
from llamapy.quants import codec

sizes = st.lists(st.integers(1, 5), min_size=1, max_size=4)


def placed(tensor: Tensor, offset: int = 0) -> np.ndarray:
    """Give a leaf memory with the numbers 0, 1, 2, ... and return them in the tensor's shape."""
    numbers = np.arange(tensor.n_elements, dtype="f4")
    owner = aligned(offset + tensor.n_bytes)
    owner[offset:] = numbers.view(np.uint8)
    Buffer(BufferType("cpu"), owner).place(tensor, offset)
    return numbers.reshape(tensor.ne[::-1])


def shown(view: Tensor) -> np.ndarray:
    """What a view of placed memory shows, by its own strides."""
    assert view.view_src is not None and view.view_src.data is not None
    view.buffer, view.data = view.view_src.buffer, view.view_src.data + view.view_offset
    return decode(view.kind, blocks(view))


@given(sizes)
def test_strides_are_those_of_a_numpy_array(ne):
    tensor = Tensor("f32", ne)
    array = np.zeros(tensor.ne[::-1], "f4")
    assert tensor.nb[::-1] == array.strides
    assert tensor.n_bytes == array.nbytes and tensor.contiguous and tensor.contiguous_rows


@pytest.mark.parametrize("name", codec.registry())
def test_rows_of_blocks(name):
    kind = codec.get(name)
    tensor = Tensor(name, (kind.n_values * 3, 5, 2))
    assert tensor.nb[1] == 3 * kind.n_bytes and tensor.nb[2] == 5 * tensor.nb[1]
    assert tensor.n_bytes == 30 * kind.n_bytes
    if kind.n_values > 1:
        with pytest.raises(QuantError, match=name):
            Tensor(name, (kind.n_values + 1,))


def test_more_than_four_dimensions_are_refused():
    with pytest.raises(ShapeError, match="four"):
        Tensor("f32", (1, 2, 3, 4, 5))


def test_a_size_of_zero_has_no_bytes():
    assert Tensor("f32", (4, 0)).n_bytes == 0


@settings(max_examples=50)
@given(sizes, st.permutations(range(4)), st.data())
def test_permuted_cut_and_turned_views(ne, axes, data):
    g, leaf = Builder(), Tensor("f32", ne)
    array = placed(leaf, offset=64)
    start = [data.draw(st.integers(0, n - 1)) for n in leaf.ne]
    left = [data.draw(st.integers(1, n - s)) for n, s in zip(leaf.ne, start)]
    offset = sum(s * b for s, b in zip(start, leaf.nb))
    cut = g.view(leaf, left, leaf.nb, offset)
    want = array[tuple(slice(s, s + n) for s, n in zip(start[::-1], left[::-1]))]
    assert np.array_equal(shown(cut), want)
    turned = g.permute(cut, axes)
    assert turned.view_src is leaf and turned.view_offset == offset
    for i in range(4):
        assert turned.ne[axes[i]] == cut.ne[i] and turned.nb[axes[i]] == cut.nb[i]
    assert np.array_equal(shown(turned), turned.op.meaning(want))
    swapped = g.transpose(turned)
    assert np.array_equal(shown(swapped), shown(turned).swapaxes(-1, -2))
    assert np.array_equal(swapped.op.meaning(shown(turned)), shown(swapped))


def test_contiguous_is_what_numpy_calls_contiguous():
    g, leaf = Builder(), Tensor("f32", (6, 4, 3))
    placed(leaf)
    for axes in ((0, 2, 1, 3), (1, 0, 2, 3), (0, 1, 2, 3)):
        view = g.permute(leaf, axes)
        assert view.contiguous == shown(view).flags.c_contiguous
        assert view.contiguous_rows == (view.nb[0] == 4)


def test_reshape_reads_in_order():
    g, leaf = Builder(), Tensor("f32", (6, 4))
    array = placed(leaf)
    view = g.reshape(leaf, (2, 3, 4))
    assert np.array_equal(shown(view)[0], array.reshape(4, 3, 2))
    assert np.array_equal(view.op.meaning(array), shown(view))


def test_missing_strides_of_a_view_follow():
    g, leaf = Builder(), Tensor("f32", (8, 6))
    array = placed(leaf)
    assert np.array_equal(shown(g.view(leaf, (4, 2)))[0, 0], array.ravel()[:8].reshape(2, 4))
    every_second = g.view(leaf, (8, 3), (4, 64))
    assert np.array_equal(shown(every_second)[0, 0], array[0, 0, ::2])


@pytest.mark.parametrize(
    "make",
    [
        lambda g, x: g.view(x, (9,), None, -4),
        lambda g, x: g.view(x, (9,), None, 4 * (24 - 8)),
        lambda g, x: g.view(x, (6, 5)),
        lambda g, x: g.reshape(x, (5, 5)),
        lambda g, x: g.reshape(g.permute(x, (1, 0, 2, 3)), (24,)),
        lambda g, x: g.permute(x, (0, 0, 1, 2)),
        lambda g, x: g.transpose(Tensor("q8_0", (32, 4))),
        lambda g, x: g.permute(Tensor("q8_0", (32, 4)), (1, 0, 2, 3)),
    ],
)
def test_views_that_cannot_be_are_refused(make):
    with pytest.raises(ShapeError):
        make(Builder(), Tensor("f32", (6, 4)))
