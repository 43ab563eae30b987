"""llamapy.quantize and llamapy.dequantize: what they take, what they refuse and how they say it."""

import subprocess
import sys

import numpy as np
import pytest

import llamapy
from llamapy.core.errors import QuantError
from llamapy.quants import api, codec

ENCODED = [kind for kind in codec.registry().values() if kind.encode is not None]
every = pytest.mark.parametrize("kind", ENCODED, ids=lambda kind: kind.name)


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def weights_for(kind, n):
    return np.ones(n, np.float32) if kind.name in api.NEED_IMPORTANCE else None


def test_it_is_public_and_lazy():
    assert llamapy.quantize is api.quantize and llamapy.dequantize is api.dequantize
    code = "import sys, llamapy; assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_numbers_and_classes_say_the_same():
    rows = normal(2, 256)
    same = [api.quantize(rows, kind).tobytes() for kind in ("q4_K", "Q4_k", 12, codec.get("q4_K"))]
    assert len(set(same)) == 1


def test_shapes():
    rows = normal(2, 3, 64)
    out = api.quantize(rows, "q8_0")
    assert out.shape == (6, 68) and out.dtype == np.uint8
    assert api.quantize(rows[0, 0], "q8_0").tolist() == out[:1].tolist()
    assert api.quantize(np.zeros((0, 64)), "q8_0").shape == (0, 68)
    assert api.dequantize(out, "q8_0").shape == (6, 64)
    assert api.dequantize(out.tobytes(), "q8_0").shape == (384,)
    for shape in [(2, 3, 64), (2, -1, 64), [6, 64]]:
        back = api.dequantize(memoryview(out.tobytes()), "q8_0", shape)
        assert back.reshape(-1).tolist() == api.dequantize(out, "q8_0").reshape(-1).tolist()
    assert api.dequantize(out.view(codec.get("q8_0").block), "q8_0", 384).shape == (384,)
    assert api.dequantize(b"", "q8_0").shape == (0,)


def test_numbers_of_other_types_and_layouts():
    rows = normal(4, 64).astype(np.float16)
    want = api.quantize(rows.astype(np.float32), "q5_1")
    for same in (rows, rows.astype(np.float64), rows.tolist(), np.asfortranarray(rows)):
        assert (api.quantize(same, "q5_1") == want).all()
    assert (api.quantize(np.arange(32), "f32").view("<f4") == np.arange(32)).all()


def test_large_tensors_are_decoded_in_steps():
    rows = normal(1, 2 * api._STEP + 256)
    blocks = api.quantize(rows, "q6_K")
    whole = codec.get("q6_K").dequantize(blocks.reshape(-1).view(codec.get("q6_K").block))
    assert (api.dequantize(blocks, "q6_K") == whole.reshape(1, -1)).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@every
def test_what_is_not_finite_is_refused_by_place(kind, bad):
    rows = normal(3, 512)
    rows[1, 77] = rows[2, 3] = bad
    with pytest.raises(QuantError, match=f"row 1, column 77 is {bad}"):
        api.quantize(rows, kind, weights_for(kind, 512))


@every
@pytest.mark.parametrize("size", [3e38, 1e12, 2e6])
def test_too_large_weights_are_refused_or_kept(kind, size):
    """An error with the place, or values that are still about as large."""
    rows = normal(2, 512)
    rows[1, 256:] = size
    try:
        blocks = api.quantize(rows, kind, weights_for(kind, 512))
    except QuantError as error:
        assert f"row 1, column 256 is {np.float32(size)}: too large for {kind.name}" in str(error)
        return
    back = api.dequantize(blocks, kind)
    assert np.isfinite(back).all()
    if kind.name != "nvfp4":  # its scales end at 448, the factor of the tensor is elsewhere
        assert 0.6 < back[1, 256:].mean(dtype=np.float64) / size < 1.4


@pytest.mark.parametrize("name", ["f16", "q4_0", "q4_1", "q8_0", "q4_K", "q6_K", "tq2_0"])
def test_the_first_weight_too_large_is_named(name):
    rows = np.zeros((3, 512), np.float32)
    rows[2, 300] = -1e9
    with pytest.raises(QuantError, match=r"row 2, column 300 is -1000000000.0: too large for"):
        api.quantize(rows, name)


@pytest.mark.parametrize("name", ["iq2_xxs", "iq2_xs", "iq3_xxs", "iq3_s", "iq2_s"])
def test_importances_that_stop_ggml_are_an_error(name):
    """ggml ends the process: no point of the grid is nearest."""
    rows = np.repeat(normal(1, 512), 3, axis=0)
    with pytest.raises(QuantError, match=f"row 0 cannot be quantized to {name}"):
        api.quantize(rows, name, np.full(512, 3e38))


def test_nonfinite_can_be_forced(ggml):
    rows = normal(1, 64)
    rows[0, 3] = np.inf
    got = api.quantize(rows, "f16", allow_nonfinite=True)
    assert (got == ggml.quantize("f16", rows)).all()


def test_who_needs_importances_is_what_ggml_says(ggml):
    needs = {kind.name for kind in ENCODED if ggml.needs_importance(kind.type_id)}
    assert needs == api.NEED_IMPORTANCE
    for name in sorted(needs):
        with pytest.raises(QuantError, match=f"{name} needs importances"):
            api.quantize(normal(1, 256), name)


@pytest.mark.parametrize(
    ("values", "kind", "importance", "message"),
    [
        (np.zeros((2, 100)), "q4_K", None, "100 values does not divide into q4_K blocks of 256"),
        (np.zeros((2, 48)), "q8_0", None, "48 values does not divide into q8_0 blocks of 32"),
        (np.zeros((2, 32)), "i8", None, "nothing is quantized to i8"),
        (np.zeros((2, 32)), "f64", None, "nothing is quantized to f64"),
        (np.zeros((2, 32)), "q9_0", None, "unknown tensor type 'q9_0'"),
        (np.zeros((2, 32)), 4, None, "unknown tensor type 4"),
        (np.float32(1), "q8_0", None, r"an array of shape \(\)"),
        (np.zeros((2, 32), complex), "q8_0", None, "type complex128"),
        (np.array(["a"] * 32), "q8_0", None, "type <U1"),
        (np.zeros((2, 32)), "q4_0", np.ones(16), r"shape \(16,\), the rows have 32 columns"),
        (np.zeros((2, 32)), "q4_0", np.ones((1, 32)), r"shape \(1, 32\)"),
        (np.zeros((2, 32)), "q4_0", np.full(32, np.nan), "importance of column 0 is nan"),
        (np.full((2, 32), 1e300), "f32", None, "row 0, column 0 is inf"),
    ],
)
def test_misuse_of_quantize(values, kind, importance, message):
    with pytest.raises(QuantError, match=message):
        api.quantize(values, kind, importance)


@pytest.mark.parametrize(
    ("n_bytes", "kind", "shape", "message"),
    [
        (35, "q8_0", None, "35 bytes are no whole number of q8_0 blocks of 34"),
        (68, "q8_0", (3, 32), r"64 values of q8_0 do not fill the shape \(3, 32\)"),
        (68, "q8_0", (4, 16), r"rows of shape \(4, 16\) do not divide into q8_0 blocks of 32"),
        (68, "q8_0", (-1, 48), r"64 values of q8_0 do not fill the shape \(-1, 48\)"),
        (68, "q8_0", (-1, -1), r"do not fill the shape \(-1, -1\)"),
        (68, "q8_0", (), r"64 values of q8_0 do not fill the shape \(\)"),
        (34, "q4_2", None, "unknown tensor type 'q4_2'"),
    ],
)
def test_misuse_of_dequantize(n_bytes, kind, shape, message):
    with pytest.raises(QuantError, match=message):
        api.dequantize(bytes(n_bytes), kind, shape)


def test_damaged_blocks_give_what_ieee_says_without_a_warning():
    blocks = np.full((1, 34), 255, np.uint8)
    blocks[0, :2] = np.array([np.inf], "<f2").view(np.uint8)
    assert (api.dequantize(blocks, "q8_0") == -np.inf).all()
