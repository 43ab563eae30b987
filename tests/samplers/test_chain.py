"""The chain: draws, greedy choice, biases, state; and whole chains against llama.cpp's."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable

import numpy as np
import pytest

from llamapy.core.errors import ModelError, ShapeError, UsageError
from llamapy.samplers._mt19937 import Mt19937
from llamapy.samplers.chain import Chain, SamplerParams

PLAIN = SamplerParams(temp=1, top_k=0, top_p=1, min_p=0, seed=3)


def test_mt19937_is_the_standard_one() -> None:
    """The C++ standard fixes the 10,000th word of a default-seeded std::mt19937 (26.6.5)."""
    generator = Mt19937(5489)
    words = [generator.word() for _ in range(10_000)]
    assert words[0] == 3499211612
    assert words[-1] == 4123659995


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32 - 1])
def test_mt19937_against_numpy(seed: int) -> None:
    legacy = np.random.RandomState(seed)  # the same init_genrand seeding
    ours = Mt19937(seed)
    raw = legacy.randint(0, 2**32, 20, dtype=np.uint32).astype(np.uint64)
    for low, high in raw.reshape(-1, 2):
        expected = float(low + high * 4294967296.0) / 2.0**64
        assert ours.uniform() == expected and 0 <= expected < 1


def test_a_draw_never_reaches_one() -> None:
    generator = Mt19937(1)
    generator.word = lambda: 0xFFFFFFFF  # type: ignore[method-assign]
    assert generator.uniform() == np.nextafter(1.0, 0)
    assert generator.uniform_f32() == np.nextafter(np.float32(1), np.float32(0))


def test_draws_follow_the_probabilities() -> None:
    """Inversion, in the order of the vocabulary: the token is where the running sum passes r."""
    probs = np.array([0.5, 0.25, 0.125, 0.125])
    chain = Chain(PLAIN, 4)
    generator = Mt19937(3)
    counts = np.zeros(4)
    for _ in range(4000):
        token = chain.sample(np.log(probs).astype(np.float32))
        assert token == int(np.searchsorted(np.cumsum(probs), generator.uniform()))
        counts[token] += 1
    assert (np.abs(counts / 4000 - probs) < 4 * np.sqrt(probs / 4000)).all()


def test_long_lists_are_walked_as_short_ones() -> None:
    logits = np.random.default_rng(1).normal(0, 2, 20_000).astype(np.float32)
    chain, generator = Chain(PLAIN, len(logits)), Mt19937(3)
    weights = np.exp((logits - logits.max()).astype(np.float32)).astype(np.float64)
    sums = np.cumsum(weights)
    for _ in range(200):
        assert chain.sample(logits) == int(np.searchsorted(sums, sums[-1] * generator.uniform()))
    assert chain.last is not None
    np.testing.assert_allclose(chain.last.probs, weights / sums[-1], rtol=1e-6)


def test_greedy_is_argmax_and_ties_go_to_the_lowest_id() -> None:
    chain = Chain(SamplerParams(temp=0, top_k=3, top_p=0.1, min_p=0.9), 50_000)
    logits = np.random.default_rng(0).normal(0, 1, 50_000).astype(np.float32)
    assert chain.sample(logits) == int(np.argmax(logits))
    logits[[49_000, 333, 4_000]] = 9
    assert chain.sample(logits) == 333
    flat = np.zeros(50_000, np.float32)
    assert chain.sample(flat) == 0
    typical = Chain(SamplerParams(temp=0, typ_p=0.5), 6)
    assert typical.sample(np.log(np.array([0.02, 0.3, 0.3, 0.3, 0.06, 0.02], np.float32))) == 1


def test_penalties_count_in_greedy_decoding() -> None:
    chain = Chain(SamplerParams(temp=0, penalty_repeat=2), 4)
    logits = np.array([1, 3, 2, -1], np.float32)
    seen = []
    for _ in range(3):
        seen.append(chain.sample(logits))
        chain.accept(seen[-1])
    assert seen == [1, 2, 1]  # 3 -> 1.5, 2 -> 1, then 1.5 is the largest again
    assert logits.tolist() == [1, 3, 2, -1]


def test_biases_and_banned_tokens() -> None:
    logits = np.array([5, 4, 3, 2, 1], np.float32)

    def greedy(**values: object) -> int:
        ids = {"eog_ids": [0], "suppress_ids": [1, -1, 99]}
        return Chain(SamplerParams(temp=0, **values), 5, **ids).sample(logits)

    assert greedy() == 0  # token 1 is suppressed, 0 ends
    assert greedy(ignore_eos=True) == 2
    assert greedy(ignore_eos=True, logit_bias={4: 2.5}) == 4
    assert greedy(logit_bias={0: -np.inf, 1: 50.0}) == 2  # a bias does not bring back the banned
    with pytest.raises(UsageError, match="token 5 is not in the vocabulary of 5"):
        greedy(logit_bias={5: 1.0})


@pytest.mark.parametrize("params", [SamplerParams(temp=0), SamplerParams(seed=1), PLAIN])
def test_logits_that_are_no_numbers_are_reported(params: SamplerParams) -> None:
    chain = Chain(params, 5000)
    logits = np.zeros(5000, np.float32)
    for bad in (np.nan, np.inf):
        logits[4321] = bad
        with pytest.raises(ModelError, match=f"gave {bad} instead of a score for token 4321"):
            chain.sample(logits)
    with pytest.raises(ModelError, match="no token is left"):
        chain.sample(np.full(5000, -np.inf, np.float32))
    with pytest.raises(ShapeError, match="need"):
        chain.sample(logits[:-1])


def test_state_goes_through_json_and_reset_starts_again() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(0, 2, (30, 300)).astype(np.float32)
    params = SamplerParams(
        seed=9, penalty_repeat=1.3, dry_multiplier=0.5, xtc_probability=0.5, xtc_threshold=0.05
    )

    def run(chain: Chain, part: np.ndarray) -> list[int]:
        tokens = []
        for row in part:
            tokens.append(chain.sample(row))
            chain.accept(tokens[-1])
        return tokens

    chain = Chain(params, 300)
    first = run(chain, rows[:15])
    saved = json.loads(json.dumps(chain.state()))
    second = run(chain, rows[15:])
    again = Chain(params, 300)
    again.restore(saved)
    assert run(again, rows[15:]) == second
    chain.reset()
    assert run(chain, rows) == first + second
    with pytest.raises(UsageError, match="another chain"):
        Chain(SamplerParams(mirostat=1), 300).restore(saved)


def test_a_seed_fixes_the_text() -> None:
    rows = np.random.default_rng(2).normal(0, 1, (40, 100)).astype(np.float32)
    texts = {s: [Chain(SamplerParams(seed=s), 100).sample(r) for r in rows] for s in (7, 8)}
    assert texts[7] == [Chain(SamplerParams(seed=7), 100).sample(r) for r in rows]
    assert texts[7] != texts[8]


def test_the_default_chain_is_fast_on_a_large_vocabulary() -> None:
    """Against numpy's own argpartition in the same run, never an absolute time."""
    logits = np.random.default_rng(0).normal(0, 3, 262_144).astype(np.float32)
    chain = Chain(SamplerParams(seed=1), len(logits))

    def best(act: Callable[[], object]) -> float:
        times = []
        for _ in range(30):
            start = time.perf_counter()
            act()
            times.append(time.perf_counter() - start)
        return min(times)

    assert best(lambda: chain.sample(logits)) < best(lambda: np.argpartition(logits, -40))


V, SEED = 2500, 7
TAIL = [
    ("top_k", 40),
    ("top_p", 0.95, 0),
    ("min_p", 0.05, 0),
    ("temp_ext", 0.8, 0, 1),
    ("dist", SEED),
]
CASES = {
    "default": ({}, TAIL),
    "plain": ({"top_k": 0, "top_p": 1, "min_p": 0, "temp": 1}, TAIL[-1:]),
    "top_p": ({"top_k": 0, "top_p": 0.9, "min_p": 0, "temp": 1}, [("top_p", 0.9, 0), TAIL[-1]]),
    "min_p": ({"top_k": 0, "top_p": 1, "min_p": 0.02}, [("min_p", 0.02, 0), *TAIL[3:]]),
    "keep": ({"min_keep": 5, "top_k": 0}, [("top_p", 0.95, 5), ("min_p", 0.05, 5), *TAIL[3:]]),
    "typ_p": (
        {"top_k": 0, "top_p": 1, "min_p": 0, "typ_p": 0.8},
        [("typical", 0.8, 0), *TAIL[3:]],
    ),
    "typ_p after top_k": ({"typ_p": 0.5}, [TAIL[0], ("typical", 0.5, 0), *TAIL[1:]]),
    "top_n_sigma": (
        {"top_n_sigma": 1.5, "top_k": 0, "top_p": 1, "min_p": 0},
        [("top_n_sigma", 1.5), *TAIL[3:]],
    ),
    "xtc": (
        {"xtc_probability": 0.5, "xtc_threshold": 0.05},
        [*TAIL[:3], ("xtc", 0.5, 0.05, 0, SEED), *TAIL[3:]],
    ),
    "dynamic": (
        {"dynatemp_range": 0.5, "dynatemp_exponent": 1.3},
        [*TAIL[:3], ("temp_ext", 0.8, 0.5, 1.3), TAIL[-1]],
    ),
    "mirostat": (
        {"mirostat": 1, "mirostat_tau": 2},  # a larger tau overflows llama.cpp's k here
        [("temp", 0.8), ("mirostat", V, SEED, 2, 0.1, 100)],
    ),
    "mirostat 2": ({"mirostat": 2}, [("temp", 0.8), ("mirostat_v2", SEED, 5, 0.1)]),
    "penalties": (
        {"penalty_repeat": 1.3, "penalty_freq": 0.2, "penalty_present": 0.1, "penalty_last_n": 20},
        [("penalties", V, 20, 1.3, 0.2, 0.1), *TAIL],
    ),
    "dry": (
        {"dry_multiplier": 0.8, "dry_penalty_last_n": 50},
        [("dry", None, 0.8, 1.75, 2, 50, None, 0), *TAIL],
    ),
    "adaptive_p": (
        {"adaptive_target": 0.3, "order": ("top_k", "adaptive_p", "min_p")},
        [TAIL[0], ("min_p", 0.05, 0), ("adaptive_p", 0.3, 0.9, SEED)],
    ),
    "adaptive_p off": (
        {"order": ("min_p", "adaptive_p")},
        [TAIL[2], ("adaptive_p", -1, 0.9, SEED)],
    ),
    "greedy": ({"temp": 0}, [*TAIL[:3], ("temp", 0), ("dist", SEED)]),
    "another order": (
        {"order": ("temperature", "min_p", "top_k")},
        [TAIL[3], TAIL[2], TAIL[0], TAIL[-1]],
    ),
}


@pytest.mark.peer
@pytest.mark.parametrize("name", CASES)
def test_whole_chains_choose_as_llama_cpp(name: str, peer_chain: Callable) -> None:
    """The same seed gives the same tokens, and as many candidates are left."""
    values, steps = CASES[name]
    ours, theirs = Chain(SamplerParams(seed=SEED, **values), V), peer_chain(*steps)
    rng = np.random.default_rng(5)
    for _ in range(300):
        logits = rng.gumbel(0, rng.uniform(0.5, 3), V).astype(np.float32)
        if name in ("penalties", "dry"):
            logits[10:] -= 20  # so that tokens repeat
        left = theirs.apply(logits)
        assert ours.sample(logits) == theirs.token
        if name != "greedy":  # which looks at no candidate but the best
            assert ours.last is not None and len(left) == len(ours.last)
        ours.accept(theirs.token)
        theirs.accept(theirs.token)


@pytest.mark.peer
def test_probabilities_and_biases_as_llama_cpp(peer_chain: Callable) -> None:
    bias = {5: 3.0, 17: -np.inf, 2400: 1.5}
    pairs = (ctypes.c_int32 * 6)()
    records = np.frombuffer(pairs, np.dtype([("token", "<i4"), ("bias", "<f4")]))
    records["token"], records["bias"] = list(bias), list(bias.values())
    theirs = peer_chain(("logit_bias", V, 3, ctypes.addressof(pairs)), *TAIL)
    ours = Chain(SamplerParams(seed=SEED, logit_bias=bias), V)
    rng = np.random.default_rng(6)
    for _ in range(100):
        logits = rng.gumbel(0, 1, V).astype(np.float32)
        left = theirs.apply(logits)
        assert ours.sample(logits) == theirs.token
        assert ours.last is not None and ours.last.ids.tolist() == left["id"].tolist()
        np.testing.assert_allclose(ours.last.probs, left["p"], rtol=1e-5)


@pytest.mark.peer
@pytest.mark.model
def test_dry_with_breakers_as_llama_cpp(peer, smollm2, peer_chain: Callable) -> None:
    """Breakers are found in a real vocabulary, and the same tokens are penalized."""
    from llamapy.samplers.dry import breaker_sequences

    breakers = ["\n", ":", '"', "*", "dark"]
    with peer.open(smollm2, vocab_only=True) as model:
        texts = (ctypes.c_char_p * len(breakers))(*(b.encode() for b in breakers))
        pointer = ctypes.cast(texts, ctypes.c_void_p)
        theirs = peer_chain(
            ("dry", model.vocab, 0.8, 1.75, 2, 60, pointer, len(breakers)), ("greedy",)
        )
        pieces = [model.detokenize([token]) for token in range(model.n_vocab)]
        found = breaker_sequences(
            breakers,
            pieces,
            lambda text: model.tokenize(text, add_special=False, parse_special=False),
        )
        assert any(() in tails for tails in found.values())
        assert any(tail for tails in found.values() for tail in tails)  # some take two tokens
        params = SamplerParams(temp=0, dry_multiplier=0.8, dry_penalty_last_n=60)
        ours = Chain(params, model.n_vocab, dry_breakers=found)
        text = 'the dark cat: sat on the *dark* cat\nsat on "the dark cat sat on the mat da rk cat'
        tokens, rng = model.tokenize(text, add_special=False), np.random.default_rng(1)
        logits = np.zeros(model.n_vocab, np.float32)
        touched = 0
        for _ in range(100):
            for token in rng.choice(tokens, 5):
                ours.accept(int(token))
                theirs.accept(int(token))
            for at in (rng.integers(len(tokens)) for _ in range(3)):
                for token in tokens[at : at + 4]:
                    ours.accept(token)
                    theirs.accept(token)
            left = theirs.apply(logits)
            assert ours.sample(logits) == theirs.token
            np.testing.assert_allclose(ours.last.logits, left["logit"], rtol=1e-6)
            touched += int((left["logit"] < 0).sum())
        assert touched > 20
