"""logit_bias: add a constant to the logits of chosen tokens; -inf bans a token.

logit[t] += bias[t]. The chain merges three sources here: the user's biases, the end-of-generation
tokens when they are to be ignored, and the tokens that the vocabulary says must never come
(`suppress_tokens`). Source: OpenAI's `logit_bias` parameter; llama.cpp's sampler of that name.
"""

from __future__ import annotations

import numpy as np

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._sampler import Sampler, Setup


class LogitBias(Sampler):
    """logit[t] += bias[t] for each biased token t (OpenAI API parameter `logit_bias`)."""

    def __init__(self, bias: dict[int, float]) -> None:
        self.tokens = np.array(list(bias), dtype=np.int32)
        self.bias = np.array(list(bias.values()), dtype=np.float32)
        self.active = bool(bias)

    @classmethod
    def from_setup(cls, setup: Setup) -> LogitBias:
        return cls(dict(setup.bias))

    def apply(self, c: Candidates) -> None:
        at, which = c.find(self.tokens)
        logits = c.logits.copy()
        logits[at] += self.bias[which]
        c.logits, c.sorted = logits, False

    def values(self) -> str:
        return f"{len(self.tokens)} tokens"
