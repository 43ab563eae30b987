"""How far a model's probabilities are from a base model's: Kullback-Leibler divergence and its kin.

Every figure is defined as in llama-perplexity --kl-divergence (tools/perplexity/perplexity.cpp).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import exp, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import LlamapyError
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows, contiguous
from llamapy.tasks.chunks import Evaluator, cut
from llamapy.tasks.logits_file import LogitsFile, Writer
from llamapy.tasks.perplexity import Chunk, OnChunk, Perplexity, Totals, byte_length, tokens_of

Doubles = NDArray[np.float64]
Floats = NDArray[np.float32]

FAINT = -16.0  # log-probabilities of the base from here down are left out of the sums
KLD_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 50.0, 10.0, 5.0, 1.0, 0.1)
DP_PERCENTILES = (99.9, 99.0, 95.0, 90.0, 75.0, 50.0, 25.0, 10.0, 5.0, 1.0, 0.1)


@dataclass(frozen=True)
class Figure:
    """A value and its standard error."""

    value: float
    error: float


@dataclass
class Divergence:
    """Figures by token, from which all statistics follow; each float64 [n], `same` bool [n].

    nll, nll_base   -log p of the text's token
    kld             sum over the vocabulary of p_base * (log p_base - log p)
    dp              p - p_base of the text's token
    same            whether both think the same token the likeliest
    """

    nll: Doubles = field(default_factory=lambda: np.empty(0))
    nll_base: Doubles = field(default_factory=lambda: np.empty(0))
    kld: Doubles = field(default_factory=lambda: np.empty(0))
    dp: Doubles = field(default_factory=lambda: np.empty(0))
    same: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    n_chunks: int = 0

    def add(self, part: Divergence) -> None:
        for name in ("nll", "nll_base", "kld", "dp", "same"):
            setattr(self, name, np.concatenate([getattr(self, name), getattr(part, name)]))

    @property
    def ppl(self) -> Figure:
        return _exp(mean(self.nll))

    @property
    def ppl_base(self) -> Figure:
        return _exp(mean(self.nll_base))

    @property
    def _covariance(self) -> float:
        n = len(self.nll)
        if n < 10:
            return 0.0
        both = (self.nll * self.nll_base).mean() - self.nll.mean() * self.nll_base.mean()
        return float(both) / (n - 1)

    @property
    def correlation(self) -> float:
        """Of the two models' -log p."""
        errors = mean(self.nll).error * mean(self.nll_base).error
        return self._covariance / errors if errors else 0.0

    @property
    def log_ratio(self) -> Figure:
        """ln(PPL / PPL of the base)."""
        a, b = mean(self.nll), mean(self.nll_base)
        spread = a.error**2 + b.error**2 - 2 * self._covariance
        return Figure(a.value - b.value, sqrt(max(spread, 0.0)))

    @property
    def ratio(self) -> Figure:
        return _exp(self.log_ratio)

    @property
    def difference(self) -> Figure:
        """PPL - PPL of the base."""
        a, b = self.ppl, self.ppl_base
        spread = a.error**2 + b.error**2 - 2 * a.value * b.value * self._covariance
        return Figure(a.value - b.value, sqrt(max(spread, 0.0)))

    @property
    def mean_kld(self) -> Figure:
        return mean(self.kld)

    @property
    def mean_dp(self) -> Figure:
        return mean(self.dp)

    @property
    def rms_dp(self) -> Figure:
        squares = mean(self.dp**2)
        root = sqrt(squares.value)
        return Figure(root, 0.5 / root * squares.error if root else 0.0)

    @property
    def same_top(self) -> Figure:
        share, n = float(self.same.mean()), len(self.same)
        return Figure(share, sqrt(share * (1 - share) / max(n - 1, 1)))

    def percentiles(self, name: str) -> dict[str, float]:
        """{"max", "99.9", ..., "min"} of "kld" or "dp", interpolated linearly."""
        values = np.sort(getattr(self, name))
        at = KLD_PERCENTILES if name == "kld" else DP_PERCENTILES
        found = {"max": float(values[-1])}
        found |= {f"{p:g}": float(np.percentile(values, p)) for p in at}
        return found | {"min": float(values[0])}

    def as_dict(self) -> dict[str, Any]:
        """All statistics by name; pairs of value and error."""
        pairs = "ppl ppl_base log_ratio ratio difference mean_kld mean_dp rms_dp same_top"
        found: dict[str, Any] = {"n_chunks": self.n_chunks, "n_tokens": len(self.nll)}
        for name in pairs.split():
            one = getattr(self, name)
            found |= {name: one.value, f"{name}_err": one.error}
        found |= {"correlation": self.correlation}
        return found | {f"{name}_percentiles": self.percentiles(name) for name in ("kld", "dp")}


def mean(values: Doubles) -> Figure:
    """The mean and its standard error (0 for ten values or fewer, as upstream)."""
    n = len(values)
    if not n:
        return Figure(0.0, 0.0)
    return Figure(float(values.mean()), float(values.std()) / sqrt(n - 1) if n > 10 else 0.0)


def _exp(log_value: Figure) -> Figure:
    value = exp(min(log_value.value, 700.0))
    return Figure(value, value * log_value.error)


def between(base: Floats, logits: Floats, targets: NDArray[np.int32], rows: Rows) -> Divergence:
    """Figures of scored tokens. base: log-probabilities [n, n_vocab]; logits likewise."""
    logits = contiguous(logits)
    top, log_sum = rows.normalizers(logits)
    norm, at = top + log_sum, np.arange(len(targets))
    kld = np.empty(len(targets))
    same = np.empty(len(targets), np.bool_)

    def work(first: int, last: int) -> None:
        for i in range(first, last):
            kept = base[i] > FAINT
            log_p = base[i][kept]
            rest = log_p - logits[i][kept] + np.float32(norm[i])
            kld[i] = np.dot(np.exp(log_p, dtype=np.float32).astype(np.float64), rest)
            same[i] = base[i].argmax() == logits[i].argmax()

    rows.each(len(targets), work)
    nll = norm - logits[at, targets]
    nll_base = -base[at, targets].astype(np.float64)
    return Divergence(nll, nll_base, kld, np.exp(-nll) - np.exp(-nll_base), same)


def save_logits(
    model: Model,
    text: str | bytes | NDArray[np.int32],
    path: Any,
    *,
    n_ctx: int = 512,
    chunks: int = -1,
    form: str = "u16",
    overwrite: bool = True,
    on_chunk: OnChunk | None = None,
    **options: Any,
) -> Perplexity:
    """Write the log-probabilities of a text to a file; its perplexity on the way."""
    ids = tokens_of(model, text) if isinstance(text, str | bytes) else text
    parts = cut(ids, n_ctx, chunks)
    evaluator, totals, n_bytes = Evaluator(model, n_ctx, **options), Totals(), 0
    with (
        Writer(path, parts, model.n_vocab, form=form, overwrite=overwrite) as file,
        Rows(evaluator.threads) as rows,
        evaluator.clock as clock,
    ):
        for piece in evaluator.run(parts):
            top, log_sum = rows.normalizers(piece.logits)
            file.add(piece.logits, top, log_sum)
            picked = piece.logits[np.arange(len(piece.targets)), piece.targets]
            totals.add(top + log_sum - picked, last=piece.last)
            n_bytes += byte_length(model, piece.targets)
            if piece.last and on_chunk is not None:
                on_chunk(totals.chunks[-1], len(parts))
    ppl = totals.chunks[-1].running
    return Perplexity(
        ppl,
        totals.error * ppl,
        len(totals.chunks),
        totals.n,
        n_bytes,
        totals.chunks,
        clock.seconds,
    )


def diverge(
    model: Model,
    base: LogitsFile,
    *,
    chunks: int = -1,
    on_chunk: Callable[[Chunk, int, Divergence], None] | None = None,
    **options: Any,
) -> Divergence:
    """Compare a model with the base whose log-probabilities are in a file, on the file's tokens.

    LlamapyError if the vocabularies have different sizes.
    """
    if base.n_vocab != model.n_vocab:
        raise LlamapyError(
            f"{base.path} is of a model with {base.n_vocab} tokens, {model.path} has"
            f" {model.n_vocab}",
            hint="divergence needs the same vocabulary",
        )
    parts = base.tokens if chunks < 0 else base.tokens[:chunks]
    evaluator, found, totals = Evaluator(model, base.n_ctx, **options), Divergence(), Totals()
    place = 0
    with Rows(evaluator.threads) as rows:
        for piece in evaluator.run(parts):
            end = place + len(piece.targets)
            log_p = base.rows(piece.chunk, place, end)
            part = between(log_p, piece.logits, piece.targets, rows)
            found.add(part)
            totals.add(part.nll, last=piece.last)
            place = 0 if piece.last else end
            if piece.last:
                found.n_chunks += 1
                if on_chunk is not None:
                    on_chunk(totals.chunks[-1], len(parts), found)
    return found
