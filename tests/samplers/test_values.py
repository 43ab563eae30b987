"""Exact numbers: each sampler against its published formula, written out here, or a closed form."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapy.samplers._candidates import Candidates, descending, largest
from llamapy.samplers.adaptive_p import AdaptiveP
from llamapy.samplers.dry import Dry, breaker_sequences, z_function
from llamapy.samplers.min_p import MinP
from llamapy.samplers.mirostat import Mirostat
from llamapy.samplers.penalties import Penalties
from llamapy.samplers.temperature import Temperature
from llamapy.samplers.top_k import TopK
from llamapy.samplers.top_n_sigma import TopNSigma
from llamapy.samplers.top_p import TopP
from llamapy.samplers.typ_p import TypP
from llamapy.samplers.xtc import Xtc


def of_probs(*probs: float) -> Candidates:
    """Candidates with these probabilities."""
    with np.errstate(divide="ignore"):
        return Candidates(np.log(np.array(probs)).astype(np.float32))


def kept(sampler, c: Candidates) -> list[int]:
    sampler.apply(c)
    return c.ids.tolist()


# The four-token distribution of llama.cpp's own documentation of these samplers: 0.4 0.3 0.2 0.1.
# The borders are avoided: a sum that equals p up to rounding may fall on either side.
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (TopK(1), [3]),
        (TopK(3), [3, 2, 1]),
        (TopK(9), [3, 2, 1, 0]),
        (TopP(0.0, 0), [3]),
        (TopP(0.39, 0), [3]),
        (TopP(0.41, 0), [3, 2]),
        (TopP(0.71, 0), [3, 2, 1]),
        (TopP(0.91, 0), [3, 2, 1, 0]),
        (TopP(0.0, 3), [3, 2, 1]),
        (MinP(0.24, 0), [0, 1, 2, 3]),
        (MinP(0.26, 0), [1, 2, 3]),
        (MinP(0.51, 0), [2, 3]),
        (MinP(0.76, 0), [3]),
        (MinP(1.0, 0), [3]),
        (MinP(1.0, 2), [3, 2]),
        (Xtc(1.0, 0.09, 0, 1), [0]),
        (Xtc(1.0, 0.19, 0, 1), [1, 0]),
        (Xtc(1.0, 0.29, 0, 1), [2, 1, 0]),
        (Xtc(1.0, 0.39, 0, 1), [3, 2, 1, 0]),
        (Xtc(1.0, 0.09, 3, 1), [3, 2, 1, 0]),
    ],
)
def test_truncation_of_a_small_distribution(sampler, expected: list[int]) -> None:
    assert kept(sampler, of_probs(0.1, 0.2, 0.3, 0.4)) == expected


def test_top_p_stops_at_and_typical_stops_above() -> None:
    """Eight equal tokens: sums of 1/8 are exact, so the border itself can be tried."""
    even = [0.125] * 8
    assert kept(TopP(0.5, 0), of_probs(*even)) == [0, 1, 2, 3]
    assert kept(TypP(0.5, 0), of_probs(*even)) == [0, 1, 2, 3, 4]


def test_typical_keeps_what_is_as_surprising_as_expected() -> None:
    """0.97 0.01 0.01 0.01: H = 0.168, so 0.97 is nearest; three even ones beside a likelier."""
    assert kept(TypP(0.5, 0), of_probs(0.97, 0.01, 0.01, 0.01)) == [0]
    assert sorted(kept(TypP(0.5, 0), of_probs(0.4, 0.2, 0.2, 0.2))) == [1, 2, 3]
    c = of_probs(0.4, 0.2, 0.2, 0.2)
    TypP(0.5, 0).apply(c)
    assert not c.sorted


@given(st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=40), st.floats(0.05, 0.95))
def test_typical_against_the_formula(values: list[float], p: float) -> None:
    logits = np.array(values, np.float32)
    probs = np.exp(logits.astype(np.float64) - logits.max())
    probs /= probs.sum()
    surprise = -np.log(probs)
    order = sorted(range(len(probs)), key=lambda i: abs(surprise[i] - (probs * surprise).sum()))
    sums = np.cumsum(probs[order])
    n = int((sums <= p).sum()) + 1
    near = np.abs(sums - p).min() < 1e-5
    gaps = np.diff(np.sort(np.abs(surprise - (probs * surprise).sum())))
    c = Candidates(logits)
    TypP(p, 0).apply(c)
    if not near and gaps.min() > 1e-4:
        assert c.ids.tolist() == order[:n]


def reference_penalty(logits, history: Sequence[int], last_n: int, repeat, freq, present) -> list:
    window = list(history) if last_n < 0 else list(history)[max(len(history) - last_n, 0) :]
    out = [float(x) for x in logits]
    for token in set(window):
        out[token] = out[token] * repeat if out[token] <= 0 else out[token] / repeat
        out[token] -= window.count(token) * freq + present
    return out


@pytest.mark.parametrize("last_n", [0, 1, 3, -1, 100])
@pytest.mark.parametrize(("repeat", "freq", "present"), [(1.5, 0, 0), (1.0, 0.25, 0.5), (2, 1, -1)])
def test_penalties_against_six_lines(last_n: int, repeat, freq, present) -> None:
    logits = np.array([2, -2, 0, 1, -1, 3, 0.5, -0.5, 4, -4, 7], np.float32)
    history = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 4, 3]
    sampler = Penalties(last_n, repeat, freq, present)
    for token in history:
        sampler.accept(token)
    c = Candidates(logits)
    if sampler.active:
        sampler.apply(c)
    expected = reference_penalty(logits, history, last_n, repeat, freq, present)
    np.testing.assert_allclose(c.logits, expected, rtol=1e-6)
    assert sampler.active == (last_n != 0)
    shuffled = Candidates(logits)  # the same on a list that is no longer the whole vocabulary
    shuffled.take(np.array([8, 3, 0, 10]), sorted=False)
    if sampler.active:
        sampler.apply(shuffled)
    np.testing.assert_allclose(shuffled.logits, np.array(expected)[[8, 3, 0, 10]], rtol=1e-6)


def test_temperature_closed_forms() -> None:
    c = Candidates(np.array([1, 2, 4], np.float32))
    Temperature(0.5, 0, 1).apply(c)
    assert c.logits.tolist() == [2, 4, 8]
    c = Candidates(np.array([1, 4, 4, 2], np.float32))
    Temperature(0, 0, 1).apply(c)
    assert c.logits.tolist() == [-np.inf, 4, -np.inf, -np.inf]


def test_dynamic_temperature_follows_the_entropy() -> None:
    even = Candidates(np.full(8, 3, np.float32))  # H = ln n, so the highest temperature: 1.5
    Temperature(1.0, 0.5, 1).apply(even)
    np.testing.assert_allclose(even.logits, 3 / 1.5, rtol=1e-6)
    sure = Candidates(np.array([200, 0, 0], np.float32))  # H = 0, so the lowest: 0.5
    Temperature(1.0, 0.5, 1).apply(sure)
    assert sure.logits[0] == 400
    half = of_probs(0.5, 0.5, 0, 0)  # H / ln 4 = 1/2, squared 1/4: t = 0.5 + 1 * 0.25
    Temperature(1.0, 0.5, 2).apply(half)
    np.testing.assert_allclose(half.logits[:2], math.log(0.5) / 0.75, rtol=1e-6)


def test_top_n_sigma_by_hand() -> None:
    """Logits 0 0 0 4: mean 1, sigma sqrt(3); 4 - 2 sigma = 0.54 bans the zeros, 4 - 3 sigma not."""
    for n, alive in ((2, 1), (3, 4)):
        c = Candidates(np.array([0, 0, 0, 4], np.float32))
        TopNSigma(n).apply(c)
        assert np.isfinite(c.logits).sum() == alive and len(c) == 4
    c = Candidates(np.array([0, 0, 0, 4, -np.inf], np.float32))  # the banned do not count
    TopNSigma(2.4).apply(c)  # 4 - 2.4 * sqrt(3) = -0.16
    assert np.isfinite(c.logits).sum() == 4


def slow_z(tokens: Sequence[int]) -> list[int]:
    out = [0] * len(tokens)
    for k in range(1, len(tokens)):
        while k + out[k] < len(tokens) and tokens[out[k]] == tokens[k + out[k]]:
            out[k] += 1
    return out


@given(st.lists(st.integers(0, 2), max_size=60))
def test_z_function(tokens: list[int]) -> None:
    assert z_function(tokens) == slow_z(tokens)


def test_dry_by_hand() -> None:
    """After `a b c c b c y a b c` the next c repeats 3 tokens, y repeats 2, and b one."""
    a, b, c, y = range(4)
    sampler = Dry(multiplier=2, base=3, allowed=2, last_n=-1, breakers={})
    for token in [a, b, c, c, b, c, y, a, b, c]:
        sampler.accept(token)
    assert sampler.repeats() == {c: 3, y: 2}
    got = Candidates(np.zeros(5, np.float32))
    sampler.apply(got)
    assert got.logits.tolist() == [0, 0, -2 * 3, -2, 0]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 4), st.integers(0, 30))
def test_dry_against_the_definition(text: list[int], allowed: int, last_n: int) -> None:
    """The longest suffix of the window that stood before, followed by t, for each t."""
    sampler = Dry(1, 2, allowed, last_n, {})
    for token in text:
        sampler.accept(token)
    window = text[len(text) - last_n :] if 0 < last_n < len(text) else text
    longest: dict[int, int] = {}
    for at in range(1, len(window)):  # window[at] follows a repetition that ends before it
        for n in range(at, 0, -1):
            if window[at - n : at] == window[len(window) - n :]:
                if n >= allowed:
                    longest[window[at]] = max(longest.get(window[at], 0), n)
                break
    if not sampler.active or len(window) <= allowed:
        longest = {}
    if sampler.active:
        assert sampler.repeats() == longest


def test_dry_breakers_cut_the_repetition() -> None:
    whole = Dry(1, 2, 1, -1, {9: [()]})
    for token in [1, 2, 3, 9, 1, 2, 3, 9, 1, 2]:
        whole.accept(token)
    assert whole.repeats() == {3: 2}  # `3 9 1 2` would be longer without the breaker
    halves = Dry(1, 2, 1, -1, {7: [(8,)]})  # 7 8 is a breaker, 7 alone is none
    for token in [1, 7, 8, 1, 2, 1, 7, 8, 1]:
        halves.accept(token)
    assert halves.repeats() == {2: 1, 7: 1}
    silent = Dry(1, 2, 1, -1, {3: [()]})  # a breaker itself is never penalized
    for token in [1, 2, 3, 1, 2]:
        silent.accept(token)
    assert silent.repeats() == {}


def test_breakers_over_several_tokens() -> None:
    pieces = [b"x", b"\n", b"a\n", b":=", b"=", b"=:", b"ab"]

    def tokenize(text: bytes) -> list[int]:
        return [{b"=": 4, b"b": 9}[text]]

    assert breaker_sequences(["\n"], pieces, tokenize) == {1: [()], 2: [()]}
    assert breaker_sequences([":="], pieces, tokenize) == {3: [()], 5: [(4,)]}
    assert breaker_sequences(["", "ab"], pieces[:3], tokenize) == {}


def test_mirostat_2_truncates_by_surprise_and_steers() -> None:
    """Surprises 1 2 3 3 bits. mu starts at 2 tau = 2.5: two tokens stay, of 2/3 and 1/3."""
    sampler = Mirostat(2, tau=1.25, eta=0.5, n_vocab=4, seed=1)
    c = of_probs(0.5, 0.25, 0.125, 0.125)
    sampler.apply(c)
    assert c.ids.tolist() == [0, 1]
    surprise = -math.log2([2 / 3, 1 / 3][c.selected])
    assert sampler.mu == pytest.approx(2.5 - 0.5 * (surprise - 1.25), rel=1e-6)


def test_mirostat_1_estimates_zipf() -> None:
    """Probabilities that follow rank^-s exactly give that s back, and so k by the formula."""
    n, s, tau = 200, 1.3, 2.0
    weights = np.arange(1, n + 1, dtype=np.float64) ** -s
    c = of_probs(*weights / weights.sum())
    Mirostat(1, tau, 0.1, n, 1).apply(c)
    k = (((s - 1) * 2 ** (2 * tau)) / (1 - n ** (1 - s))) ** (1 / s)
    assert len(c) == int(k)


def test_mirostat_keeps_all_where_the_estimate_runs_away() -> None:
    c = Candidates(np.linspace(0, 1e-3, 50, dtype=np.float32))
    Mirostat(1, 40, 0.1, 50, 1).apply(c)
    assert len(c) == 50


def test_adaptive_p_prefers_the_target() -> None:
    """Fresh, it wants the target itself: the token at 0.3 gets 5, others 5 - 10 d^2 / (1 + d)."""
    sampler = AdaptiveP(0.3, 0.9, 1)
    c = of_probs(0.6, 0.3, 0.1)
    sampler.apply(c)
    d = np.array([0.3, 0, 0.2]) / 0.3
    np.testing.assert_allclose(c.logits, 5 - 10 * d**2 / (1 + d), atol=1e-5)
    token = int(c.ids[c.selected])
    sampler.accept(token)
    p = [0.6, 0.3, 0.1][token]
    assert sampler.sum == pytest.approx(p + 0.9 * 3, rel=1e-5)
    assert sampler.weight == pytest.approx(1 + 0.9 * 10, rel=1e-5)
    before = sampler.sum
    sampler.apply(of_probs(0.6, 0.3, 0.1))
    sampler.accept(77)  # another token than the one drawn: nothing is learnt
    assert sampler.sum == before


@given(
    st.lists(st.sampled_from([-np.inf, -3.5, -0.0, 0.0, 1.0, 2.5]), min_size=1, max_size=30),
    st.integers(1, 9),
    st.integers(1, 400),
)
def test_largest_orders_ties_by_position(values: list[float], repeat: int, k: int) -> None:
    logits = np.array(values * (repeat * 41), np.float32)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert largest(logits, k).tolist() == order[:k]
    assert descending(logits).tolist() == order


@pytest.mark.parametrize("n", [1, 63, 257, 4096, 50_001])
@pytest.mark.parametrize("k", [1, 40, 300, 5000])
def test_largest_of_many(n: int, k: int) -> None:
    logits = np.random.default_rng(n).normal(0, 3, n).astype(np.float32)
    assert largest(logits, k).tolist() == np.argsort(-logits, kind="stable")[:k].tolist()
