"""Several quants of a model measured against the first in one pass over a text: size, perplexity,
divergence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import LlamapyError, UsageError
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows
from llamapy.tasks.chunks import Evaluator, cut
from llamapy.tasks.divergence import Divergence, between
from llamapy.tasks.perplexity import tokens_of


@dataclass
class Measured:
    """One model: its bytes of weights, bits a weight, and how it differs from the first."""

    path: str
    n_bytes: int
    bits_per_weight: float
    divergence: Divergence

    def as_dict(self) -> dict[str, Any]:
        facts = {"path": self.path, "n_bytes": self.n_bytes}
        facts |= {"bits_per_weight": self.bits_per_weight}
        return facts | self.divergence.as_dict()


def compare(
    models: Sequence[Model],
    text: str | bytes | NDArray[np.int32],
    *,
    n_ctx: int = 512,
    chunks: int = -1,
    on_chunk: Callable[[int, int], None] | None = None,
    **options: Any,
) -> list[Measured]:
    """Measure all models on the same chunks; the first is the base of the others (and of itself).

    on_chunk: called with the chunks done and in all. LlamapyError if vocabularies differ.
    """
    if len(models) < 2:
        raise UsageError("a comparison needs two models or more")
    base = models[0]
    for other in models[1:]:
        if other.n_vocab != base.n_vocab:
            raise LlamapyError(
                f"{other.path} has {other.n_vocab} tokens, {base.path} {base.n_vocab}",
                hint="only quants of one model can be compared",
            )
    ids = tokens_of(base, text) if isinstance(text, str | bytes) else text
    parts = cut(ids, n_ctx, chunks)
    evaluators = [Evaluator(model, n_ctx, **options) for model in models]
    found = [Divergence() for _ in models]
    with Rows(evaluators[0].threads) as rows:
        for pieces in zip(*(e.run(parts) for e in evaluators)):
            logits = pieces[0].logits
            top, log_sum = rows.normalizers(logits)
            log_p = (logits - (top + log_sum)[:, None]).astype(np.float32)
            for mine, piece in zip(found, pieces):
                mine.add(between(log_p, piece.logits, piece.targets, rows))
                mine.n_chunks += piece.last
            if pieces[0].last and on_chunk is not None:
                on_chunk(pieces[0].chunk + 1, len(parts))
    return [
        Measured(m.path, m.n_bytes, 8 * m.n_bytes / m.n_params, d) for m, d in zip(models, found)
    ]
