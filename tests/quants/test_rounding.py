"""The roundings against C's and against whole-number arithmetic; the lanes they are made of."""

import ctypes
import ctypes.util
import operator

import numpy as np
import pytest

from llamapy.native import compiled, lanes, mem
from llamapy.quants import rounding

EDGES = np.array([0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, -127.5, 8388607.5], np.float32)


@compiled
def round_away(src, dst, n):
    for i in range(0, n, 8):
        lanes.store(dst, i, lanes.to_f32(rounding.away(lanes.load(src, i))))


@compiled
def round_even(src, dst, n):
    for i in range(0, n, 8):
        lanes.store(dst, i, lanes.to_f32(lanes.nearest(lanes.load(src, i))))


@compiled
def round_even_one(src, dst, n):
    for i in range(n):
        mem.put_f32(dst, i, rounding.nearest_int(mem.f32(src, i)))


@compiled
def keep_between(src, dst, n):
    for i in range(0, n, 8):
        lanes.store(dst, i, lanes.to_f32(lanes.bounded(lanes.load(src, i), -4, 3)))


def near_halves():
    """Halves and their neighbours on both sides, of many sizes."""
    halves = np.concatenate([EDGES, np.arange(-300, 300) + 0.5]).astype(np.float32)
    sides = [np.nextafter(halves, side, dtype=np.float32) for side in (-np.inf, halves, np.inf)]
    values = np.concatenate(sides)
    return np.concatenate([values, np.zeros(-values.size % 8, np.float32)])


def small_numbers():
    """Those on which nearest_int is to be relied."""
    values = near_halves()
    values = values[np.abs(values) < 2**22]
    return values[: values.size // 8 * 8]


def applied(function, values):
    out = np.empty_like(values)
    function(values.ctypes.data, out.ctypes.data, values.size)
    return out


def test_away_is_roundf():
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    library.roundf.restype, library.roundf.argtypes = ctypes.c_float, [ctypes.c_float]
    values = near_halves()
    want = np.array([library.roundf(float(value)) for value in values])
    assert (applied(round_away, values) == want).all()


@pytest.mark.parametrize("function", [round_even, round_even_one])
def test_nearest_is_halves_to_even(function):
    values = small_numbers()
    assert (applied(function, values) == np.rint(values)).all()


def test_bounded_keeps_between():
    values = small_numbers()
    assert (applied(keep_between, values) == np.clip(np.rint(values), -4, 3)).all()


@compiled
def operators(a, b, out):
    x, y = lanes.load(a, 0), lanes.load(b, 0)
    lanes.store(out, 0, x + y)
    lanes.store(out, 8, x - y)
    lanes.store(out, 16, x * y)
    lanes.store(out, 24, x / y)
    lanes.store(out, 32, -x)
    lanes.store(out, 40, lanes.absolute(x))
    lanes.store(out, 48, lanes.root(lanes.absolute(x)))
    lanes.store(out, 56, lanes.greater(x, y))
    lanes.store(out, 64, lanes.lesser(x, y))
    lanes.store(out, 72, lanes.splat(lanes.highest(x)))
    lanes.store(out, 80, lanes.splat(lanes.lowest(x)))


def test_lanes_are_single_precision_arithmetic():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 8)).astype(np.float32)
    out = np.empty((11, 8), np.float32)
    operators(a.ctypes.data, b.ctypes.data, out.ctypes.data)
    same = [a + b, a - b, a * b, a / b, -a, np.abs(a), np.sqrt(np.abs(a))]
    same += [np.maximum(a, b), np.minimum(a, b), np.full(8, a.max()), np.full(8, a.min())]
    assert out.tobytes() == np.array(same).tobytes()


@compiled
def comparisons(a, b, out):
    x, y = lanes.load(a, 0), lanes.load(b, 0)
    mem.put_u8(out, 0, lanes.mask_bits(x < y))
    mem.put_u8(out, 1, lanes.mask_bits(x <= y))
    mem.put_u8(out, 2, lanes.mask_bits(x > y))
    mem.put_u8(out, 3, lanes.mask_bits(x >= y))
    mem.put_u8(out, 4, lanes.mask_bits(x == y))
    mem.put_u8(out, 5, lanes.mask_bits(x != y))
    mem.put_u8(out, 6, lanes.mask_bits((x < y) & (x != y) | (x == y)))
    mem.put_u8(out, 7, lanes.any_lane(x > y))
    mem.put_u8(out, 8, lanes.any_lane((x > y) & (x < y)))


def test_lanes_compare_as_ieee():
    """Equal zeros of both signs; a NaN is unequal to all."""
    a = np.array([0, -0.0, 1, 2, np.nan, np.nan, -np.inf, 3], np.float32)
    b = np.array([-0.0, 0, 2, 1, np.nan, 1, np.inf, 3], np.float32)
    out = np.zeros(9, np.uint8)
    comparisons(a.ctypes.data, b.ctypes.data, out.ctypes.data)
    same = [op(a, b) for op in (operator.lt, operator.le, operator.gt, operator.ge)]
    same += [a == b, a != b, a <= b]
    want = [int(np.packbits(mask, bitorder="little")[0]) for mask in same]
    assert out.tolist() == [*want, 1, 0]
