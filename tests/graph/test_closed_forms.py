"""Meanings against formulas written another way: complex numbers, loops, compositions of other
ops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llamapy.graph.op import registry
from llamapy.graph.softmax import slopes

OPS = registry()
rng = np.random.default_rng(5)


def near(got, want, digits=1e-6):
    np.testing.assert_allclose(got, want, rtol=digits, atol=digits * np.abs(want).max())


@pytest.mark.parametrize("mode", ["norm", "neox"])
def test_rope_is_a_product_of_complex_numbers(mode):
    x = rng.standard_normal((1, 4, 3, 10)).astype("f4")
    pos = np.array([[[[0, 1, 7, 300]]]], "i4")
    got = OPS["rope"](8, mode, freq_base=100.0).meaning(x, pos)
    assert np.array_equal(got[..., 8:], x[..., 8:])
    for token in range(4):
        for i in range(4):
            a, b = (2 * i, 2 * i + 1) if mode == "norm" else (i, i + 4)
            turn = np.exp(1j * int(pos[0, 0, 0, token]) * 100.0 ** (-i / 4))
            z = (x[0, token, :, a].astype(complex) + 1j * x[0, token, :, b]) * turn
            near(got[0, token, :, a], z.real, 1e-5)
            near(got[0, token, :, b], z.imag, 1e-5)


def test_rope_at_position_zero_leaves_all_and_distance_is_what_counts():
    op = OPS["rope"](64, "neox", freq_base=10000.0)
    q, k = rng.standard_normal((2, 1, 1, 1, 64)).astype("f4")

    def at(x, p):
        return op.meaning(x, np.array([[[[p]]]], "i4"))

    assert np.array_equal(at(q, 0), q)
    near(np.sum(at(q, 17) * at(k, 9)), np.sum(at(q, 1008) * at(k, 1000)), 1e-4)


def test_yarn_keeps_fast_pairs_and_slows_the_others():
    plain = OPS["rope"](128, "neox")
    yarn = OPS["rope"](
        128, "neox", n_ctx_orig=4096, freq_scale=0.25, ext_factor=1.0, attn_factor=1.0
    )
    pos = np.arange(1, 4)
    magnitude = 1 + 0.1 * math.log(4)
    cos, sin = yarn.turns(pos, None)
    near(cos**2 + sin**2, np.full(cos.shape, magnitude**2))
    # Pairs that turn more than 32 times in 4096 positions are as before, less than once: a quarter.
    turns = 4096 * 10000.0 ** (-np.arange(64) / 64) / (2 * math.pi)
    fast, slow = turns > 40, turns < 0.8
    assert fast.sum() > 10 and slow.sum() > 10
    near(cos[:, fast] / magnitude, plain.turns(pos, None)[0][:, fast])
    quarter = pos[:, None] * 10000.0 ** (-np.arange(64) / 64) / 4
    near(sin[:, slow] / magnitude, np.sin(quarter)[:, slow])


def test_alibi_slopes_of_the_paper():
    near(slopes(8, 8.0), [2.0**-i for i in range(1, 9)])
    near(slopes(4, 8.0), [0.25, 0.0625, 0.015625, 0.00390625])
    # 12 heads: eight as above, then every second one of sixteen.
    near(slopes(12, 8.0)[8:], [2.0 ** (-0.5 * i) for i in (1, 3, 5, 7)])
    assert np.array_equal(slopes(5, 0.0), np.ones(5))


def test_soft_max_by_loops():
    x = rng.standard_normal((1, 2, 3, 6)).astype("f4")
    mask = np.where(rng.random((1, 1, 4, 6)) < 0.3, -np.inf, 0.5).astype("f4")
    mask[..., 0] = 0
    sinks = np.array([0.3, -2.0], "f4")
    op = OPS["soft_max"](scale=0.7, max_bias=4.0, has_mask=True, has_sinks=True)
    got = op.meaning(x, mask, sinks.reshape(1, 1, 1, 2))
    for h, slope in enumerate((2.0**-2, 2.0**-4)):
        for q in range(3):
            e = [math.exp(0.7 * x[0, h, q, i] + slope * mask[0, 0, q, i]) for i in range(6)]
            near(got[0, h, q], np.array(e) / (sum(e) + math.exp(sinks[h])))


def test_a_row_that_is_masked_whole_is_zero():
    x = np.ones((1, 1, 2, 3), "f4")
    mask = np.array([[[[0, 0, -np.inf], [-np.inf] * 3]]], "f4")
    got = OPS["soft_max"](has_mask=True).meaning(x, mask)
    assert np.array_equal(got[0, 0], np.array([[0.5, 0.5, 0], [0, 0, 0]], "f4"))
    v = np.ones((1, 1, 3, 4), "f4")
    out = OPS["flash_attn"](has_mask=True).meaning(np.ones((1, 1, 2, 4), "f4"), v, v, mask)
    assert np.array_equal(out[0, :, 0], [[1] * 4, [0] * 4])


def test_flash_attention_is_the_spelled_out_one():
    q = rng.standard_normal((2, 6, 5, 8)).astype("f4")
    k, v = (rng.standard_normal((2, 3, 9, n)).astype("f4") for n in (8, 4))
    mask = np.where(rng.random((1, 1, 5, 9)) < 0.3, -np.inf, 0).astype("f4")
    fields = {"has_mask": True, "max_bias": 2.0}
    got = OPS["flash_attn"](scale=0.3, softcap=2.0, **fields).meaning(q, k, v, mask)
    scores = OPS["mul_mat"]().meaning(k, q)
    scores = np.tanh(scores * 0.3 / 2.0) * 2.0
    weights = OPS["soft_max"](**fields).meaning(scores.astype("f4"), mask)
    near(got, OPS["mul_mat"]().meaning(v.swapaxes(-1, -2), weights).transpose(0, 2, 1, 3))


def test_grouped_heads_share_their_matrix():
    w, x = (rng.standard_normal(s).astype("f4") for s in ((1, 2, 3, 4), (2, 6, 5, 4)))
    got = OPS["mul_mat"]().meaning(w, x)
    assert got.shape == (2, 6, 5, 3)
    for b in range(2):
        for h in range(6):
            near(got[b, h], x[b, h] @ w[0, h // 3].T)


def test_large_products_are_as_near_in_float32():
    w, x = (rng.standard_normal((1, 1, n, 512)).astype("f4") for n in (300, 200))
    want = x[0, 0].astype("f8") @ w[0, 0].T.astype("f8")
    near(OPS["mul_mat"]().meaning(w, x)[0, 0], want, 1e-5)


def test_experts_by_loops():
    w, b = (
        rng.standard_normal((1, 4, 3, 8)).astype("f4"),
        rng.standard_normal((1, 1, 4, 3)).astype("f4"),
    )
    ids = np.array([[[[0, 3], [3, 1], [2, 0]]]], "i4")
    for m in (1, 2):
        x = rng.standard_normal((1, 3, m, 8)).astype("f4")
        got = OPS["mul_mat_id"]().meaning(w, x, ids)
        biased = OPS["add_id"]().meaning(got, b, ids)
        for token in range(3):
            for u in range(2):
                e = ids[0, 0, token, u]
                want = w[0, e] @ x[0, token, u % m]
                near(got[0, token, u], want)
                near(biased[0, token, u], want + b[0, 0, e])


def test_activations_at_known_points():
    x = np.array([-3.0, -0.5, 0.0, 1.0, 4.0], "f4")
    sig = [1 / (1 + math.exp(-v)) for v in x]
    near(OPS["sigmoid"]().meaning(x), sig)
    near(OPS["silu"]().meaning(x), x * sig)
    near(OPS["gelu_erf"]().meaning(x), [v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x])
    near(OPS["gelu"]().meaning(x), OPS["gelu_erf"]().meaning(x), 1e-3)
    near(OPS["gelu_quick"]().meaning(x), [v / (1 + math.exp(-1.702 * v)) for v in x])
    near(OPS["softplus"]().meaning(x), [math.log1p(math.exp(v)) for v in x])
    near(OPS["relu_sqr"]().meaning(x), [0, 0, 0, 1, 16])


def test_norms_by_their_names():
    x = rng.standard_normal((1, 1, 4, 50)).astype("f4") + 2
    y = OPS["norm"](1e-12).meaning(x)
    assert np.abs(y.mean(-1)).max() < 1e-6
    near(y.std(-1), np.ones_like(y.std(-1)), 1e-5)
    near(np.linalg.norm(OPS["l2_norm"](1e-12).meaning(x), axis=-1), np.ones((1, 1, 4)))
    near(np.sqrt((OPS["rms_norm"](0.0).meaning(x) ** 2).mean(-1)), np.ones((1, 1, 4)))
    assert np.array_equal(
        OPS["l2_norm"](1.0).meaning(np.full((1, 1, 1, 1), 0.5, "f4")), [[[[0.5]]]]
    )


def test_rows_are_written_where_the_ids_say():
    table = np.zeros((1, 2, 5, 3), "f4")
    x = rng.standard_normal((1, 2, 2, 3)).astype("f4")
    got = OPS["set_rows"]().meaning(table, x, np.array([[[[4, 1]]]], "i8"))
    want = table.copy()
    want[0, :, 4], want[0, :, 1] = x[0, :, 0], x[0, :, 1]
    assert np.array_equal(got, want) and not table.any()


def test_hadamard_is_sylvesters_matrix():
    matrix = np.ones((1, 1))
    while len(matrix) < 64:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    x = rng.standard_normal((1, 2, 3, 128)).astype("f4")
    y = OPS["hadamard"](64).meaning(x)
    near(y, np.concatenate([x[..., :64] @ matrix, x[..., 64:] @ matrix], -1) / 8, 1e-5)
    near(OPS["hadamard"](64).meaning(y), x, 1e-5)
