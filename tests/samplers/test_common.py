"""Checks that every sampler passes: they run over the files of llamapy/samplers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from llamapy.core.errors import UsageError
from llamapy.samplers._candidates import Candidates
from llamapy.samplers._params import DEFAULT_ORDER
from llamapy.samplers._registry import sampler_class
from llamapy.samplers._sampler import Setup
from llamapy.samplers.chain import Chain, SamplerParams, parse_order, sampler_names

N_VOCAB = 3000
# parameters that switch every sampler on
BUSY = SamplerParams(
    temp=0.7, typ_p=0.7, top_n_sigma=1.5, xtc_probability=0.6, xtc_threshold=0.02,
    penalty_repeat=1.2, penalty_freq=0.1, penalty_present=0.2, dry_multiplier=0.8, mirostat=2,
    adaptive_target=0.4, seed=1,
)  # fmt: skip
SETUP = Setup(BUSY, N_VOCAB, seed=1, bias={3: 2.0, 2999: -1.0})
STATES = ("whole", "sorted", "shuffled", "one", "tied", "banned")


def candidates(state: str) -> Candidates:
    """A list of candidates in a state that a sampler may meet."""
    rng = np.random.default_rng(11)
    logits = rng.gumbel(0, 2, N_VOCAB).astype(np.float32)
    if state == "tied":
        logits[:] = 1.5
    if state == "banned":
        logits[2:] = -np.inf
    c = Candidates(logits)
    if state == "sorted":
        c.sort()
    if state == "shuffled":
        c.take(rng.permutation(N_VOCAB)[:500], sorted=False)
    if state == "one":
        c.take(np.array([17]), sorted=True)
    return c


def make(name: str):
    sampler = sampler_class(name).from_setup(SETUP)
    for token in [5, 6, 7, 5, 6, 9, 5, 6]:
        sampler.accept(token)
    return sampler


def test_every_file_of_the_contract_is_there() -> None:
    steps = {*DEFAULT_ORDER, "logit_bias", "mirostat", "adaptive_p", "dist", "greedy"}
    assert steps == set(sampler_names())


@pytest.mark.parametrize("name", sampler_names())
def test_docstrings_give_formula_and_source(name: str) -> None:
    cls = sampler_class(name)
    module = __import__(cls.__module__, fromlist=["x"])
    assert module.__doc__.startswith(f"{name}: ")
    assert re.search(r"[Ss]ources?: ", module.__doc__)
    assert cls.__doc__ and cls.name() == name


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", sampler_names())
def test_keeps_to_the_rules(name: str, state: str) -> None:
    c = candidates(state)
    before = dict(zip(c.ids.tolist(), c.logits.tolist()))
    given, snapshot = c.logits, c.logits.copy()
    best = int(c.ids[np.argmax(c.logits)])
    sampler = make(name)
    assert sampler.active
    sampler.apply(c)
    np.testing.assert_array_equal(given, snapshot, "the arrays of the caller are not written")
    assert 1 <= len(c) <= len(before) and len(c.ids) == len(c.logits)
    assert c.logits.dtype == np.float32 and c.ids.dtype == np.int32
    assert len(set(c.ids.tolist())) == len(c) and set(c.ids.tolist()) <= set(before)
    assert not np.isnan(c.logits).any()
    if c.sorted:
        assert (np.diff(c.logits[np.isfinite(c.logits)]) <= 0).all()
    if c.probs is not None:
        total = float(c.probs.sum())
        assert total == pytest.approx(1, abs=1e-4) if sampler.selects else 0 < total < 1.0001
    if sampler.keeps_best:
        assert best in c.ids[c.logits == c.logits.max()]
    assert (c.selected >= 0) == sampler.selects
    if sampler.selects:
        assert c.selected < len(c)
        assert before[int(c.ids[c.selected])] > -np.inf


@pytest.mark.parametrize("name", sampler_names())
def test_state_is_all_that_a_sampler_remembers(name: str) -> None:
    """Restored into a fresh one, the state gives the same choices; after reset those of a new."""

    def run(sampler, n: int = 12) -> list[tuple]:
        seen = []
        for _ in range(n):
            c = candidates("whole")
            sampler.apply(c)
            sampler.accept(int(c.ids[c.selected]) if sampler.selects else int(c.ids[0]))
            seen.append((c.selected, c.ids.tobytes(), c.logits.tobytes()))
        return seen

    first = make(name)
    run(first)
    second = sampler_class(name).from_setup(SETUP)
    second.restore(first.state())
    assert run(first) == run(second)
    first.reset()
    assert run(first) == run(sampler_class(name).from_setup(SETUP))


@pytest.mark.parametrize("name", DEFAULT_ORDER)
def test_min_keep_is_honoured(name: str) -> None:
    params = SamplerParams(min_keep=7, top_p=1e-3, typ_p=1e-3, min_p=0.999, xtc_probability=1)
    sampler = sampler_class(name).from_setup(Setup(params, N_VOCAB, 1))
    for state in ("whole", "sorted", "shuffled"):
        c = candidates(state)
        sampler.apply(c)
        assert len(c) >= 7


def test_describe_marks_what_is_off() -> None:
    text = Chain(SamplerParams(seed=7), 10).describe()
    assert text == (
        "logits -> ?logit_bias -> ?penalties -> ?dry -> ?top_n_sigma -> top_k(40) -> ?typ_p"
        " -> top_p(0.95) -> min_p(0.05) -> ?xtc -> temperature(0.8) -> dist(seed 7)"
    )
    assert Chain(SamplerParams(temp=0), 10).describe().endswith("temperature(0) -> greedy")
    miro = Chain(SamplerParams(mirostat=2, seed=3), 10).describe()
    assert "top_k" not in miro and miro.endswith("mirostat(2, tau 5, eta 0.1, seed 3)")


def test_orders_as_names_and_as_letters() -> None:
    assert parse_order("edskypmxt") == DEFAULT_ORDER
    assert parse_order(";".join(DEFAULT_ORDER)) == DEFAULT_ORDER
    assert parse_order("Top-K;topp;nucleus;temp;adaptive-p") == (
        "top_k", "top_p", "top_p", "temperature", "adaptive_p",
    )  # fmt: skip
    assert parse_order("temperature") == ("temperature",)
    assert parse_order("a") == ("adaptive_p",)
    for wrong in ("top_k;nonsense", "kq", "top_k;greedy"):
        with pytest.raises(UsageError, match="no sampler"):
            parse_order(wrong)
    with pytest.raises(UsageError, match="cannot be put in an order"):
        Chain(SamplerParams(order=("dist", "top_k")), 10)
    with pytest.raises(UsageError, match="no sampler 'nope'"):
        Chain(SamplerParams(), 10, order=["nope"])
