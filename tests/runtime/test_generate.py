"""Generation: what ends it, what is shown, and that nothing but the prompt and the seed decides
it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llamapy.core.errors import Aborted, ContextFullError, UsageError
from llamapy.runtime.context import Context
from llamapy.runtime.generate import Generation, make_chain
from tests.runtime.conftest import tiny, tokens

PROMPT = "The sky is blue because"


def context(name: str = "llama", **options: Any) -> Context:
    return Context(tiny(name), **{"n_ctx": 64, "backend": "reference"} | options)


def generate(prompt: Any = PROMPT, name: str = "llama", **options: Any) -> Generation:
    facts = {key: options.pop(key) for key in ("n_ctx", "n_ubatch", "n_batch") if key in options}
    return Generation(context(name, **facts), prompt, **{"temp": 0.0, "n_predict": 12} | options)


def greedy(ids: list[int], n: int) -> list[int]:
    c, out = context(), list[int]()
    logits = c.decode(ids)
    for _ in range(n):
        out.append(int(np.argmax(logits[0])))
        logits = c.decode(out[-1:])
    return out


def test_greedy_is_the_argmax_of_each_step() -> None:
    g = generate(ignore_eos=True)
    pieces = list(g)
    want = greedy(tiny("llama").tokenize(PROMPT), 12)
    assert 2 not in want  # else ignore_eos would have changed it
    assert g.result.tokens == want
    assert "".join(pieces) == g.result.text == tiny("llama").detokenize(want)
    assert g.result.stop_reason == "length"
    t = g.result.timings
    assert (t.prompt_tokens, t.eval_tokens) == (len(g.result.prompt_tokens), 11)
    assert t.total_seconds >= t.prompt_seconds + t.eval_seconds > 0
    assert t.as_dict()["tokens_per_second"] == pytest.approx(11 / t.eval_seconds)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_length(n: int) -> None:
    g = generate(n_predict=n, ignore_eos=True)
    g.text()
    assert len(g.result.tokens) == n and g.result.stop_reason == "length"


def test_stop_text() -> None:
    whole = generate(ignore_eos=True).text()
    for a, b in ((0, 1), (3, 5), (4, 8)):
        stop = whole[a:b]
        g = generate(ignore_eos=True, stop=["never", stop])
        assert g.text() == whole[: whole.index(stop)]
        assert (g.result.stop_reason, g.result.stop) == ("stop", stop)
        assert len(g.result.tokens) < 12


def test_stop_token() -> None:
    """A control token prints nothing, so as a stop it counts by its id."""
    g = generate(stop=["<|im_start|>"], logit_bias={1: 1000.0})
    assert g.text() == "" and g.result.tokens == [1]
    assert (g.result.stop_reason, g.result.stop) == ("stop", "<|im_start|>")


def test_end_of_generation() -> None:
    g = generate(logit_bias={2: 1000.0})
    assert g.text() == "" and g.result.tokens == [2] and g.result.stop_reason == "eos"
    assert generate(logit_bias={1: 1000.0}, n_predict=2, special=True).text() == "<|im_start|>" * 2


def test_context_full() -> None:
    ids = tokens(20)
    g = generate(ids, n_ctx=32, n_predict=-1, ignore_eos=True)
    g.text()
    # 32 positions hold the prompt and 12 tokens; the 13th is chosen but has no room
    assert g.result.stop_reason == "context" and len(g.result.tokens) == 13
    assert g.context.memory.pos_max(0) == 31


def test_prompt_that_just_fits_and_one_too_long() -> None:
    g = generate(tokens(32), n_ctx=32, n_predict=-1, ignore_eos=True)
    g.text()
    assert g.result.stop_reason == "context" and len(g.result.tokens) == 1
    c = context(n_ctx=32)
    with pytest.raises(ContextFullError, match="has 33 tokens, but the context only 32"):
        Generation(c, tokens(33))
    assert c.memory.pos_max(0) == -1


@pytest.mark.parametrize("kind", ["f32", "q8_0"])
def test_context_shift(kind: str) -> None:
    """A run of three times the context ends, at the length asked for. In a model of one layer each
    step must say what a fresh context says of the tokens that are left."""
    c = context("llama-k", n_ctx=32, type_k=kind, type_v=kind)
    ids = tokens(10)
    g = Generation(c, ids, n_predict=100, context_shift=True, n_keep=4, temp=0.0, ignore_eos=True)
    g.text()
    assert len(g.result.tokens) == 100 and g.result.stop_reason == "length" and g.shifted
    cells = next(c.memory.caches()).cells
    held = sorted(cells.pos[cells.pos >= 0].tolist())
    assert held == list(range(g.n_past)) and g.n_past <= 32
    left = (ids[:4] + (ids[4:] + g.result.tokens[:-1])[-(g.n_past - 4) :])[: g.n_past]
    fresh = context("llama-k", n_ctx=32, type_k=kind, type_v=kind).decode(left)
    error = ((fresh - c.logits) ** 2).sum() / (fresh**2).sum()
    assert error < (1e-8 if kind == "f32" else 1e-2)


def test_the_batch_does_not_decide() -> None:
    ids = tokens(40)
    runs = [
        generate(ids, n_batch=b, n_ubatch=u, n_predict=10) for b, u in ((64, 64), (64, 8), (7, 1))
    ]
    assert len({g.text() for g in runs}) == 1


def test_seeds() -> None:
    drawn = [generate(temp=1.5, seed=seed, n_predict=20).text() for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    chain = make_chain(tiny("llama"), seed=-1, temp=1.0)
    again = generate(temp=1.0, seed=chain.seed).text()
    assert again == Generation(context(), PROMPT, chain=chain, n_predict=12).text()


def test_going_on_in_the_same_context() -> None:
    ids = tokens(10)
    c = context()
    first = Generation(c, ids, n_predict=4, temp=0.0, ignore_eos=True)
    first.text()
    n_held = c.memory.pos_max(0) + 1
    assert n_held == 13  # the last token was chosen, not evaluated
    second = Generation(c, first.result.tokens[-1:], n_predict=4, temp=0.0, ignore_eos=True)
    second.text()
    whole = generate(ids, n_predict=8, ignore_eos=True)
    whole.text()
    assert first.result.tokens + second.result.tokens == whole.result.tokens


def test_interruption() -> None:
    g = generate(n_predict=50, ignore_eos=True)
    seen = ""
    with pytest.raises(Aborted):
        for i, piece in enumerate(g):
            seen += piece
            if i == 3:
                g.stop()
    assert g.result.stop_reason == "interrupted" and g.result.text == seen
    rest = Generation(g.context, g.result.tokens[-1:], n_predict=4, temp=0.0, ignore_eos=True)
    rest.text()
    want = greedy(g.result.prompt_tokens, len(g.result.tokens) + 4)
    assert g.result.tokens + rest.result.tokens == want


def test_prompts() -> None:
    assert generate("", n_predict=1).result.prompt_tokens == [1]  # BOS stands for an empty one
    assert generate("<|im_end|>", parse_special=True).result.prompt_tokens == [2]
    assert len(generate("<|im_end|>").result.prompt_tokens) > 1
    with pytest.raises(UsageError, match="n_predict is -3"):
        generate(n_predict=-3)


def test_model_generate() -> None:
    model = tiny("llama")
    assert (
        "".join(model.generate(PROMPT, context=context(), temp=0.0, n_predict=12))
        == generate().text()
    )


def test_dry_gets_its_breakers() -> None:
    """DRY breaks off the repetition of a word, but not of a breaker."""
    word, breaker = (tiny("llama").tokenize(text)[0] for text in ("x", "\n"))
    for token, stays in ((word, False), (breaker, True)):
        g = generate([token] * 20, dry_multiplier=2.0, logit_bias={token: 30.0}, n_predict=3)
        g.text()
        assert (g.result.tokens == [token] * 3) is stays
