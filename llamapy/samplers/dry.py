"""dry: "don't repeat yourself": penalize tokens that would go on with a repetition of the text.

If the last L tokens of the window already stood earlier in it, followed by token t, then
    logit[t] -= multiplier * base ^ (L - allowed_length)     for the longest such L >=
    allowed_length.
L never reaches past a sequence breaker. Source: p-e-w 2024, text-generation-webui pull request
5677; the search for L by the Z-algorithm and the handling of breakers follow koboldcpp 982 and
llama.cpp. A window of -1 is the whole text and 0 is off; llama.cpp turns negative windows into 0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._params import MAX_FLOAT
from llamapy.samplers._sampler import Breakers, Sampler, Setup

MAX_BREAKER_BYTES = 40
MAX_TAIL_TOKENS = 20
LOG_MAX_FLOAT = 88.7228391  # base ^ L beyond e to this power overflows single precision


class Dry(Sampler):
    """logit[t] -= multiplier * base ^ (L - allowed), t extending a repetition of L (p-e-w 2024)."""

    letter = "d"

    def __init__(
        self, multiplier: float, base: float, allowed: int, last_n: int, breakers: Breakers
    ) -> None:
        self.multiplier, self.base = np.float32(multiplier), np.float32(base)
        self.allowed, self.last_n, self.breakers = allowed, last_n, breakers
        self.active = multiplier != 0 and base >= 1 and last_n != 0
        self.window: deque[int] = deque(maxlen=last_n if last_n > 0 else None)

    @classmethod
    def from_setup(cls, setup: Setup) -> Dry:
        p = setup.params
        return cls(
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            p.dry_penalty_last_n,
            setup.breakers,
        )

    def apply(self, c: Candidates) -> None:
        lengths = self.repeats()
        if not lengths:
            return
        tokens = np.fromiter(lengths.keys(), np.int32, len(lengths))
        penalty = np.array([self.penalty(length) for length in lengths.values()], np.float32)
        at, which = c.find(tokens)
        logits = c.logits.copy()
        logits[at] -= penalty[which]
        c.logits, c.sorted = logits, False

    def penalty(self, length: int) -> float:
        """What a repetition of `length` tokens costs."""
        exponent = length - self.allowed
        if self.base > 1.000001:
            exponent = min(exponent, int(LOG_MAX_FLOAT / math.log(self.base)))
        return min(float(self.multiplier) * float(self.base) ** exponent, MAX_FLOAT)

    def repeats(self) -> dict[int, int]:
        """{token: the longest repetition, `allowed` or more, that it would extend}."""
        latest = list(self.window)[::-1]
        if len(latest) <= self.allowed:
            return {}
        limit = self._limit(latest)
        if limit < self.allowed:
            return {}
        longest: dict[int, int] = {}
        for k, length in enumerate(z_function(latest)):
            length = min(length, limit)
            token = latest[k - 1]
            if k and length >= self.allowed and () not in self.breakers.get(token, ()):
                longest[token] = max(longest.get(token, 0), length)
        return longest

    def _limit(self, latest: list[int]) -> int:
        """How many of the `latest` tokens (newest first) come after the last breaker."""
        for i, token in enumerate(latest):
            tails = self.breakers.get(token, ())
            # a tail is completed by the tokens after its head, which are the newer ones: before i
            # here
            complete = [
                len(t) for t in tails if len(t) <= i and latest[i - len(t) : i] == [*t][::-1]
            ]
            if complete:
                return i - max(complete)
        return len(latest)

    def accept(self, token: int) -> None:
        if self.active:
            self.window.append(token)

    def reset(self) -> None:
        self.window.clear()

    def state(self) -> dict[str, Any]:
        return {"window": list(self.window)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.window.clear()
        self.window.extend(state["window"])

    def values(self) -> str:
        return f"{self.multiplier:g}, {self.base:g}, {self.allowed}, last {self.last_n}"


def z_function(tokens: Sequence[int]) -> list[int]:
    """z[k]: how many tokens from k on equal those from 0 on; z[0] = 0 (Gusfield 1997, 1.4)."""
    n = len(tokens)
    z = [0] * n
    left = right = 0  # tokens[left:right] equals a prefix, and right is the largest found so far
    for k in range(1, n):
        length = min(z[k - left], right - k) if k < right else 0
        while k + length < n and tokens[length] == tokens[k + length]:
            length += 1
        z[k] = length
        if k + length > right:
            left, right = k, k + length
    return z


def breaker_sequences(
    breakers: Sequence[str], pieces: Sequence[bytes], tokenize: Callable[[bytes], list[int]]
) -> dict[int, list[tuple[int, ...]]]:
    """{token: tails} for every token whose text holds a breaker (tail `()`) or ends with the start
    of one.

    `pieces` is the text of every token, `tokenize` gives the ids of a text without any special
    ones.
    """
    found: dict[int, list[tuple[int, ...]]] = {}
    for breaker in filter(None, breakers):
        text = breaker.encode()[:MAX_BREAKER_BYTES]
        for token, piece in enumerate(pieces):
            for tail in _tails(piece, text, tokenize):
                if tail not in found.setdefault(token, []):
                    found[token].append(tail)
    return found


def _tails(
    piece: bytes, breaker: bytes, tokenize: Callable[[bytes], list[int]]
) -> list[tuple[int, ...]]:
    """The token sequences that complete `breaker` after `piece`; `()` if it is all there."""
    if breaker in piece:
        return [()]
    starts = range(min(len(breaker) - 1, len(piece)), 0, -1)
    ends = [breaker[n:] for n in starts if piece.endswith(breaker[:n])]
    return [tuple(tokenize(end)[:MAX_TAIL_TOKENS]) for end in ends]
