"""The chain: from a row of logits to a token, through samplers that are named in an order.

It knows how a chain is put together (biases first, one sampler that chooses last, greedy when the
temperature is 0) and holds the seed. It knows no tokenizer: what DRY needs from one is handed in.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import ModelError, ShapeError, UsageError
from llamapy.samplers._candidates import Candidates
from llamapy.samplers._params import DEFAULT_ORDER, MAX_SEED, SamplerParams
from llamapy.samplers._registry import parse_order, sampler_class, sampler_names
from llamapy.samplers._sampler import Breakers, Sampler, Setup

__all__ = [
    "DEFAULT_ORDER",
    "Breakers",
    "Candidates",
    "Chain",
    "SamplerParams",
    "parse_order",
    "sampler_names",
]


class Chain:
    """Chooses tokens. One chain belongs to one text: it remembers tokens and random numbers.

    `eog_ids` end generation (banned by `ignore_eos`), `suppress_ids` are banned always, `order`
    overrides the order in `params`, `dry_breakers` comes from `dry.breaker_sequences`. `seed` is
    the one in use: a random one was drawn if the parameters say -1. UsageError for a token id
    outside the vocabulary or an unknown sampler.
    """

    def __init__(
        self,
        params: SamplerParams,
        n_vocab: int,
        *,
        eog_ids: Iterable[int] = (),
        suppress_ids: Iterable[int] = (),
        order: Sequence[str] | None = None,
        dry_breakers: Breakers | None = None,
    ) -> None:
        self.params, self.n_vocab = params, n_vocab
        self.seed = secrets.randbelow(MAX_SEED) if params.seed in (-1, MAX_SEED) else params.seed
        bias = _merge_bias(params, n_vocab, eog_ids, suppress_ids)
        setup = Setup(params, n_vocab, self.seed, bias, dry_breakers or {})
        names = _steps(params, params.order if order is None else order)
        self.steps: list[Sampler] = [sampler_class(name).from_setup(setup) for name in names]
        self._active = self._needed_steps()
        self.last: Candidates | None = None

    def _needed_steps(self) -> list[Sampler]:
        """The steps that can change the choice."""
        active = [step for step in self.steps if step.active]
        if active[-1].name() == "greedy":  # what always keeps the best need not run to find it
            return [step for step in active if step.selects or not step.keeps_best]
        return active

    def sample(self, logits: NDArray[np.float32]) -> int:
        """Choose a token from `logits`, float32 [n_vocab], which stay as they are.

        The candidates of this choice are in `last` afterwards. ModelError if the logits are not
        numbers or leave no token. The token is not remembered: that is `accept`.
        """
        if logits.shape != (self.n_vocab,):
            raise ShapeError(f"logits have shape {logits.shape}, need ({self.n_vocab},)")
        c = Candidates(np.asarray(logits, np.float32))
        with np.errstate(all="ignore"):  # what is not finite is reported below
            if not np.isfinite(c.peak()):
                raise _no_choice(c.logits)
            for step in self._active:
                step.apply(c)
        if not 0 <= c.selected < len(c) or not np.isfinite(c.logits[c.selected]):
            raise _no_choice(c.logits)
        self.last = c
        return c.selected if c.whole else int(c.ids[c.selected])

    def accept(self, token: int) -> None:
        """Remember a token of the text, of the prompt too."""
        for step in self._active:
            step.accept(token)

    def reset(self) -> None:
        """Forget the text; the random numbers start again from the same seed."""
        for step in self.steps:
            step.reset()

    def describe(self) -> str:
        """The steps in order, with `?` before those that are off."""
        return " -> ".join(["logits", *(step.describe() for step in self.steps)])

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to go on from here, of plain lists and numbers."""
        return {step.name(): step.state() for step in self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from the `state` of a chain with the same steps. UsageError if they differ."""
        if list(state) != [step.name() for step in self.steps]:
            raise UsageError(f"the saved sampler state is of another chain: {', '.join(state)}")
        for step in self.steps:
            step.restore(state[step.name()])


def _steps(params: SamplerParams, order: Sequence[str]) -> list[str]:
    """The names of the chain's steps: biases, the order asked for, and one that chooses."""
    if params.mirostat:
        return ["logit_bias", "temperature", "mirostat"]
    middle = [name for name in dict.fromkeys(order) if name != "adaptive_p"]
    for name in middle:
        if not sampler_class(name).letter:
            raise UsageError(f"sampler {name!r} cannot be put in an order")
    if "adaptive_p" in order:
        return ["logit_bias", *middle, "adaptive_p"]
    if params.temp <= 0 and params.dynatemp_range <= 0:
        return ["logit_bias", *middle, "greedy"]
    return ["logit_bias", *middle, "dist"]


def _merge_bias(
    params: SamplerParams, n_vocab: int, eog_ids: Iterable[int], suppress_ids: Iterable[int]
) -> dict[int, float]:
    """One bias a token: the user's, and -inf for what may not come."""
    for token in params.logit_bias:
        if token >= n_vocab:
            raise UsageError(f"--logit-bias: token {token} is not in the vocabulary of {n_vocab}")
    banned = [*suppress_ids, *(eog_ids if params.ignore_eos else ())]
    return {**params.logit_bias, **{t: -np.inf for t in banned if 0 <= t < n_vocab}}


def _no_choice(logits: NDArray[np.float32]) -> ModelError:
    """Why no token can be chosen."""
    if len(bad := np.flatnonzero(np.isnan(logits) | (logits == np.inf))):
        what = f"{logits[bad[0]]} instead of a score for token {bad[0]}"
        return ModelError(f"the model gave {what}", hint="is the file damaged?")
    return ModelError("no token is left to choose: all have a score of -inf")
