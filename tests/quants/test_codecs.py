"""Every registered type against ggml: geometry, the meaning of blocks, the compiled unpack."""

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as gguf_dequantize

from llamapy.core.errors import QuantError
from llamapy.quants import codec

CODECS = list(codec.registry().values())
BLOCK_CODECS = [kind for kind in CODECS if kind.n_values > 1]
NEWER_THAN_GGUF = ("q1_0", "q2_0")
GEOMETRY_NOT_IN_GGUF = ("q8_1", *NEWER_THAN_GGUF)  # it gives q8_1 a layout long gone
NO_FLOAT_IN_GGUF = ("q8_1", "q8_K", *NEWER_THAN_GGUF)

every = pytest.mark.parametrize("kind", CODECS, ids=lambda kind: kind.name)
every_block = pytest.mark.parametrize("kind", BLOCK_CODECS, ids=lambda kind: kind.name)


def random_blocks(kind, n_blocks, seed=0):
    """Random bits with scales of all finite sizes: zero, subnormal, largest, both signs."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (n_blocks, kind.n_bytes), np.uint8).view(kind.block)[:, 0]
    for name in kind.block.names or ():
        if kind.block[name].kind == "f" and not kind.block[name].shape:
            blocks[name] = scales(rng, n_blocks, kind.block[name])
    return blocks


def scales(rng, n, dtype):
    info = np.finfo(dtype)
    special = [0.0, -0.0, info.smallest_subnormal, info.smallest_normal, 1.0, -1.0]
    special += [65504.0, -65504.0, 1e-3]
    drawn = np.exp2(rng.uniform(-14, 12, n)) * rng.choice([-1.0, 1.0], n)
    return np.where(rng.random(n) < 0.3, rng.choice(special, n), drawn).astype(dtype)


def bits(values):
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


def assert_same_bits(got, want):
    """Equal float32 bits; any NaN equals any NaN."""
    got, want = np.asarray(got).reshape(-1), np.asarray(want).reshape(-1)
    both_nan = np.isnan(got) & np.isnan(want)
    wrong = np.flatnonzero((bits(got) != bits(want)) & ~both_nan)
    assert wrong.size == 0, f"{wrong.size} differ, first at {wrong[0]}: {got[wrong[0]]!r}"


@every
def test_geometry_is_that_of_ggml(kind, ggml):
    traits = ggml.traits(kind.type_id)
    assert (traits.n_values, traits.n_bytes) == (kind.n_values, kind.n_bytes)
    assert traits.name.decode().lower() == kind.name.lower()
    if kind.name not in GEOMETRY_NOT_IN_GGUF:
        assert GGML_QUANT_SIZES[GGMLQuantizationType(kind.type_id)] == (kind.n_values, kind.n_bytes)


def test_every_type_of_gguf_is_registered():
    ids = {kind.type_id for kind in CODECS}
    missing = [t.name for t in GGMLQuantizationType if t not in ids]
    assert not missing


@every_block
def test_dequantize_has_the_bits_of_ggml(kind, ggml):
    blocks = random_blocks(kind, 512)
    raw = blocks.view(np.uint8).reshape(8, -1)
    got = kind.dequantize(blocks)
    assert got.shape == (512, kind.n_values) and got.dtype == np.float32
    assert_same_bits(got, ggml.dequantize(kind, raw))


@every_block
def test_dequantize_has_the_bits_of_gguf(kind):
    if kind.name in NO_FLOAT_IN_GGUF:
        pytest.skip("the gguf package does not dequantize this type")
    blocks = random_blocks(kind, 64, seed=1)
    raw = blocks.view(np.uint8).reshape(4, -1)
    with np.errstate(over="ignore"):
        want = gguf_dequantize(raw, GGMLQuantizationType(kind.type_id))
    assert_same_bits(kind.dequantize(blocks), want)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_plain_floats_keep_every_bit_pattern(name):
    kind = codec.get(name)
    patterns = np.arange(65536, dtype=np.uint32)
    raw = (patterns << 16 if name == "f32" else patterns.astype(np.uint16)).view(np.uint8)
    want = gguf_dequantize(raw.reshape(1, -1), GGMLQuantizationType(kind.type_id))
    assert_same_bits(kind.dequantize(raw.view(kind.block)), want)


@pytest.mark.parametrize("name", ["i8", "i16", "i32", "i64", "f64"])
def test_other_plain_types_are_their_numbers(name):
    kind = codec.get(name)
    numbers = np.array([-128, -1, 0, 1, 127], kind.block)
    assert kind.dequantize(numbers).tolist() == [[-128.0], [-1.0], [0.0], [1.0], [127.0]]


@every_block
def test_unpack_has_the_bits_of_dequantize(kind):
    n = 300
    blocks = random_blocks(kind, n, seed=2)
    n_groups = kind.n_values // kind.group
    guard = 8  # what unpack must leave alone, on both sides
    q = np.full(kind.n_values + 2 * guard, 99, np.int8)
    s, m = (np.full(n_groups + 2 * guard, 99, np.float32) for _ in range(2))
    tables = codec.tables_address(kind)
    addresses = [a.ctypes.data + guard * a.itemsize for a in (q, s, m)]
    values, least, most, with_min = [], 127, -128, False
    for i in range(n):
        kind.unpack(blocks.ctypes.data + i * kind.n_bytes, *addresses, tables)
        inner_q, inner_s, inner_m = (a[guard:-guard] for a in (q, s, m))
        grouped = inner_q.reshape(n_groups, -1).astype(np.float32)
        with np.errstate(over="ignore"):
            values.append(inner_s[:, None] * grouped - inner_m[:, None])
        least, most = min(least, inner_q.min()), max(most, inner_q.max())
        with_min |= bool(inner_m.any())
    assert all((a[:guard] == 99).all() and (a[-guard:] == 99).all() for a in (q, s, m))
    assert_same_bits(np.array(values), kind.dequantize(blocks))
    assert kind.q_range[0] <= least and most <= kind.q_range[1]
    assert with_min == kind.has_min


@every_block
def test_unpack_reaches_the_declared_range(kind):
    """Every byte value in every place: the declared range is neither too wide nor too narrow."""
    raw = np.repeat(np.arange(256, dtype=np.uint8)[:, None], kind.n_bytes, axis=1)
    q = np.zeros((256, kind.n_values), np.int8)
    s, m = (np.zeros(kind.n_values // kind.group, np.float32) for _ in range(2))
    for i in range(256):
        place = (q[i].ctypes.data, s.ctypes.data, m.ctypes.data)
        kind.unpack(raw[i].ctypes.data, *place, codec.tables_address(kind))
    assert (int(q.min()), int(q.max())) == kind.q_range


@every
def test_facts_are_consistent(kind):
    assert kind.n_bytes == kind.block.itemsize
    assert kind.row_bytes(kind.n_values * 3) == 3 * kind.n_bytes
    assert codec.get(kind.name.upper()) is codec.get(kind.type_id) is kind
    assert codec.type_sizes(kind.type_id) == (kind.n_values, kind.n_bytes)
    if kind.n_values == 1:
        assert kind.unpack is None and kind.group == 0
    else:
        assert kind.n_values % kind.group == 0 and kind.dot_with in ("q8_0", "q8_K")


def test_a_row_that_does_not_divide_is_refused():
    with pytest.raises(QuantError, match="300 values does not divide into q4_K blocks of 256"):
        codec.get("q4_K").row_bytes(300)


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(QuantError, match="q4_k_m.*did you mean q4_K"):
        codec.get("q4_k_m")
    with pytest.raises(QuantError, match="unknown tensor type 99"):
        codec.get(99)
