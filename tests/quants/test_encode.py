"""Encoded bytes of every type against ggml_quantize_chunk, and how far the values then are off."""

import json
from pathlib import Path

import numpy as np
import pytest
from ggml_base import SLOW_TABLES
from record_quants import digest

from llamapy.quants import api, codec

FOLDER = Path(__file__).parents[2] / "fixtures" / "quants"
INPUTS = dict(np.load(FOLDER / "inputs.npz"))
RECORDED = json.loads((FOLDER / "encoded.json").read_text(encoding="utf-8"))

ENCODED = [kind for kind in codec.registry().values() if kind.encode is not None]
every = pytest.mark.parametrize("kind", ENCODED, ids=lambda kind: kind.name)
every_quick = pytest.mark.parametrize(
    "kind", [kind for kind in ENCODED if kind.name not in SLOW_TABLES], ids=lambda kind: kind.name
)


def encode(kind, rows, weights=None):
    """The codec itself, without the checks of the interface."""
    return api.quantize(rows, kind, weights, allow_nonfinite=True)


def takes_importance(kind):
    return kind.name not in ("q8_1", "q8_K")


def assert_same_bytes(kind, got, want):
    got, want = (a.reshape(-1, kind.n_bytes) for a in (got, want))
    wrong = np.flatnonzero((got != want).any(axis=1))
    assert wrong.size == 0, f"{wrong.size} of {len(got)} blocks differ, first {wrong[0]}"


def test_every_type_is_recorded():
    assert RECORDED.keys() == {kind.name for kind in ENCODED}


@pytest.mark.parametrize("name", [key[5:] for key in INPUTS if key.startswith("rows/")])
@every
def test_bytes_are_those_recorded_of_ggml(kind, name):
    """Rows that ask the searches different questions, without and with importances."""
    for weights, want in RECORDED[kind.name][name].items():
        importance = None if weights == "none" else INPUTS[f"importance/{weights}"]
        assert digest(encode(kind, INPUTS[f"rows/{name}"], importance)) == want, weights


def random_rows(rng, n_rows, n):
    """Rows of any size, with whole numbers, zeros, or groups of very different size among them."""
    values = rng.standard_normal((n_rows, n))
    style = rng.integers(5)
    if style == 1:
        values = np.round(values * rng.integers(1, 9)) / rng.integers(1, 9)
    elif style == 2:
        values *= rng.random((n_rows, n)) < rng.random()
    elif style == 3:
        values *= np.repeat(np.exp2(rng.uniform(-30, 3, (n_rows, n // 16))), 16, axis=1)
    elif style == 4:
        values = rng.uniform(-2, 2) + values * 1e-7
    return (values * 10.0 ** rng.uniform(-9, 4)).astype(np.float32)


@every_quick
def test_bytes_of_random_rows_are_those_of_ggml(kind, ggml):
    for seed in range(12):
        rng = np.random.default_rng(seed)
        rows = random_rows(rng, 2, 256 * int(rng.integers(1, 4)))
        weights = rng.standard_normal(rows.shape[1]) ** 2 if takes_importance(kind) else None
        for importance in (None, weights):
            if importance is not None or not ggml.needs_importance(kind.type_id):
                want = ggml.quantize(kind, rows, importance)
                assert_same_bytes(kind, encode(kind, rows, importance), want)


@pytest.mark.parametrize("n_blocks", [1, 3, 7, 8, 9, 17])
@every_quick
def test_bytes_of_rows_of_any_number_of_blocks(kind, n_blocks, ggml):
    """Eight blocks are fitted at a time: rows that are no multiple of that."""
    rng = np.random.default_rng(n_blocks)
    n = kind.n_values * n_blocks if kind.n_values > 1 else n_blocks
    rows = rng.standard_normal((3, n)).astype(np.float32)
    weights = rng.random(n).astype(np.float32) if takes_importance(kind) else None
    assert_same_bytes(kind, encode(kind, rows, weights), ggml.quantize(kind, rows, weights))


@every
def test_bytes_do_not_depend_on_threads(kind):
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((16, 8192)).astype(np.float32)
    weights = rng.random(8192) if takes_importance(kind) else None
    alone = api.quantize(rows, kind, weights)
    for threads in (2, 7):
        assert_same_bytes(kind, api.quantize(rows, kind, weights, threads=threads), alone)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_every_float_is_rounded_as_in_ggml(name, ggml):
    """A walk over all float32: numbers of every size, subnormals, infinities, NaNs."""
    bits = np.arange(0, 1 << 32, 4099, dtype=np.uint64).astype(np.uint32)
    values = bits[: bits.size // 13 * 13].view(np.float32).reshape(13, -1)
    assert_same_bytes(codec.get(name), encode(name, values), ggml.quantize(name, values))


def test_mxfp4_powers_of_two_are_those_of_ggml(ggml):
    """Near a power of two the logarithm in single precision is whole too early."""
    powers = np.exp2(np.arange(-126, 128, dtype=np.float64)).astype(np.float32)
    sizes = (powers.view(np.int32)[:, None] - np.arange(-3, 60, dtype=np.int32)).view(np.float32)
    subnormal = np.arange(1, 2000, dtype=np.int32).view(np.float32)
    sizes = np.concatenate([sizes.reshape(-1), subnormal])
    rows = np.zeros((sizes.size, 32), np.float32)
    rows[:, 0], rows[:, 1], rows[:, 2] = sizes, -sizes / 2, sizes / 3
    assert_same_bytes(codec.get("mxfp4"), encode("mxfp4", rows), ggml.quantize("mxfp4", rows))


def test_nvfp4_scales_are_those_of_ggml(ggml):
    """Largest sizes of a group from nothing to beyond what the scale can say."""
    sizes = np.exp2(np.linspace(-60, 60, 40000)).astype(np.float32)
    rows = np.zeros((sizes.size, 16), np.float32)
    rows[:, 3], rows[:, 5] = -sizes, sizes / 7
    rows = rows.reshape(-1, 64)
    assert_same_bytes(codec.get("nvfp4"), encode("nvfp4", rows), ggml.quantize("nvfp4", rows))


# Relative error of normal weights times 2 ** bits a weight: at least 1 for any code whatever (the
# rate-distortion bound), 1.3 to 2.6 for most types; these spend bits on other things.
FACTORS = {"tq2_0": 3.5, "q2_0": 3.6, "q8_1": 2.9, "q8_K": 4.0}
FLOATS = {"f32": (0, 0), "f16": (2.0**-14, 2.0**-11), "bf16": (2.0**-11, 2.0**-8)}


@every
def test_error_of_normal_weights(kind):
    rng = np.random.default_rng(11)
    rows = rng.standard_normal((4, 2048)).astype(np.float32)
    weights = np.ones(2048) if kind.name in api.NEED_IMPORTANCE else None
    back = api.dequantize(api.quantize(rows, kind, weights), kind)
    error = np.sqrt(np.square(back - rows).mean() / np.square(rows).mean())
    best = 2.0 ** -kind.bpw()
    least, most = FLOATS.get(kind.name, (best, FACTORS.get(kind.name, 2.6) * best))
    assert least <= error <= most
