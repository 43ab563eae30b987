"""Log-probabilities of a text's tokens, with the likeliest alternatives: what evaluation harnesses
ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.core.errors import ContextFullError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.scores import Rows

if TYPE_CHECKING:
    from llamapy.runtime.model import Model

STEP = 512


@dataclass(frozen=True)
class Alternative:
    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Scored:
    """One token. logprob: given all before it, in nats; None for the first, which nothing
    foretells. rank: how many tokens were likelier. top: the likeliest, best first."""

    token: int
    text: str
    logprob: float | None
    rank: int | None = None
    top: list[Alternative] = field(default_factory=list)


def logprobs(
    model: Model,
    text: str | bytes | Sequence[int],
    *,
    top_k: int = 0,
    parse_special: bool = False,
    **options: Any,
) -> list[Scored]:
    """Score every token of a text (or of token ids). `options` are those of a Context.

    ContextFullError if the text is longer than n_ctx (the model's, if that is not given).
    """
    if top_k < 0:
        raise UsageError(f"top_k is {top_k}")
    if isinstance(text, str | bytes):
        ids = model.tokenizer.encode(text, add_special=True, parse_special=parse_special)
    else:
        ids = [int(t) for t in text]
    if not ids:
        raise UsageError("there are no tokens")
    limit = options.pop("n_ctx", 0) or model.params.n_ctx_train
    if len(ids) > limit:
        raise ContextFullError(
            f"the text has {len(ids)} tokens, but the context only {limit}",
            hint="a larger context: -c / n_ctx",
        )
    options.setdefault("activation_bits", 16)  # a measure is worth its time
    context = Context(model, n_ctx=len(ids), n_outputs_max=STEP, **options)
    found = [Scored(ids[0], _text(model, ids[0]), None)]
    with Rows(2) as rows:
        for at in range(0, len(ids), STEP):
            part = ids[at : at + STEP]
            logits = context.decode(Batch(part, outputs="all"), copy=False)
            following = np.array(ids[at + 1 : at + STEP + 1], np.int64)
            logits = logits[: len(following)]
            if len(following):
                top, log_sum = rows.normalizers(logits)
                for i, token in enumerate(following):
                    found.append(_scored(model, logits[i], int(token), top[i] + log_sum[i], top_k))
    return found


def _scored(model: Model, row: Any, token: int, norm: float, top_k: int) -> Scored:
    best: list[Alternative] = []
    if top_k:
        chosen = np.argpartition(-row, min(top_k, len(row) - 1))[:top_k]
        for t in chosen[np.argsort(-row[chosen], kind="stable")]:
            best.append(Alternative(int(t), _text(model, int(t)), float(row[t] - norm)))
    rank = int(np.count_nonzero(row > row[token]))
    return Scored(token, _text(model, token), float(row[token] - norm), rank, best)


def _text(model: Model, token: int) -> str:
    piece = model.tokenizer.piece(token, special=True)
    return piece.decode("utf-8", "backslashreplace")
