"""Encoded bytes of every type against ggml_quantize_chunk, and how far the values then are off."""

import numpy as np
import pytest

from llamapy.quants import api, codec

ENCODED = [kind for kind in codec.registry().values() if kind.encode is not None]
every = pytest.mark.parametrize("kind", ENCODED, ids=lambda kind: kind.name)
N = 512  # divides into blocks of every type


def rows_of(n=N, n_rows=2):
    """Rows that ask the searches different questions."""
    rng = np.random.default_rng(1)
    normal = rng.standard_normal((n_rows, n)).astype(np.float32)
    by_group = np.exp2(rng.integers(-20, 4, (n_rows, n // 32))).astype(np.float32)
    outlier = np.zeros((n_rows, n), np.float32)
    outlier[:, n // 3] = -5
    near = np.where(rng.random((n_rows, n)) < 0.5, np.float32(-1), np.nextafter(-1, 0, dtype="f4"))
    rows = {
        "normal": normal,
        "uniform": rng.uniform(-1, 1, (n_rows, n)),
        "positive": np.abs(normal) + 1,
        "negative": -np.abs(normal) - 1,
        "sparse": np.where(rng.random((n_rows, n)) < 0.05, normal, np.copysign(0, normal)),
        "constant": np.full((n_rows, n), 0.37),
        "constant_negative": np.full((n_rows, n), -0.37),
        "nearly_constant": near,
        "tiny": normal * 1e-8,
        "subnormal": normal * 1e-40,
        "large": normal * 1e6,
        "zeros": np.zeros((n_rows, n)),
        "outlier": outlier,
        "halves": rng.integers(-16, 17, (n_rows, n)) * 0.5,
        "few_values": rng.choice(np.array([-3, -1, 0.5, 2]), (n_rows, n)),
        "groups": normal * np.repeat(by_group, 32, axis=1),
        "heavy": rng.standard_cauchy((n_rows, n)),
    }
    return {name: values.astype(np.float32) for name, values in rows.items()}


ROWS = rows_of()


def importances(n=N):
    rng = np.random.default_rng(7)
    return {
        "uniform": rng.uniform(0.1, 1, n),
        "squares": rng.standard_normal(n) ** 2,
        "wide": np.exp(5 * rng.standard_normal(n)),
        "some_zero": np.where(rng.random(n) < 0.3, 0, rng.random(n)),
        "zero": np.zeros(n),
    }


def encode(kind, rows, weights=None):
    """The codec itself, without the checks of the interface."""
    return api.quantize(rows, kind, weights, allow_nonfinite=True)


def takes_importance(kind):
    return kind.name not in ("q8_1", "q8_K")


def assert_same_bytes(kind, got, want):
    got, want = (a.reshape(-1, kind.n_bytes) for a in (got, want))
    wrong = np.flatnonzero((got != want).any(axis=1))
    assert wrong.size == 0, f"{wrong.size} of {len(got)} blocks differ, first {wrong[0]}"


@pytest.mark.parametrize("name", ROWS)
@every
def test_bytes_are_those_of_ggml(kind, name, ggml):
    rows = ROWS[name]
    if not ggml.needs_importance(kind.type_id):
        assert_same_bytes(kind, encode(kind, rows), ggml.quantize(kind, rows))
    for weights in importances().values() if takes_importance(kind) else ():
        got = encode(kind, rows, weights)
        assert_same_bytes(kind, got, ggml.quantize(kind, rows, weights))


@pytest.mark.parametrize("n_blocks", [1, 3, 7, 8, 9, 17])
@every
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
