"""Perplexity: how surprised a model is by a text, chunk by chunk.

The figures are llama-perplexity's (tools/perplexity/perplexity.cpp): exp of the mean of -log p over
the second halves of chunks; its error is that of the mean times the perplexity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import LlamapyError, UsageError
from llamapy.runtime.model import Model
from llamapy.runtime.scores import Rows
from llamapy.tasks.chunks import Evaluator, Ids, cut

Doubles = NDArray[np.float64]
ROUND_CTX = 256  # contexts of the strided mode are rounded up to it


@dataclass(frozen=True)
class Chunk:
    """One chunk's own perplexity, and the running one over all chunks so far."""

    number: int
    ppl: float
    running: float


@dataclass
class Perplexity:
    """What was measured.

    ppl, ppl_err  perplexity and its standard error (0 in the strided mode: windows overlap)
    n_chunks      chunks measured
    n_tokens      tokens scored
    n_bytes       bytes of the scored tokens
    chunks        figures of each chunk
    seconds       spent on evaluation
    """

    ppl: float = 0.0
    ppl_err: float = 0.0
    n_chunks: int = 0
    n_tokens: int = 0
    n_bytes: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bits_per_byte(self) -> float:
        """Comparable between models with different vocabularies."""
        return self.n_tokens * log(self.ppl) / log(2) / self.n_bytes if self.n_bytes else 0.0

    @property
    def per_byte(self) -> float:
        """Perplexity by byte in place of by token."""
        return float(2**self.bits_per_byte)


class Totals:
    """Sums of -log p and of its square, and the chunks so far."""

    def __init__(self) -> None:
        self.n, self.sum, self.squares = 0, 0.0, 0.0
        self.chunks: list[Chunk] = []
        self._open: list[Doubles] = []

    def add(self, nll: Doubles, *, last: bool) -> None:
        """Take -log p of some tokens of a chunk; `last` ends the chunk."""
        self.n += len(nll)
        self.sum += float(nll.sum())
        self.squares += float((nll * nll).sum())
        self._open.append(nll)
        if last:
            own = np.concatenate(self._open).mean()
            self.chunks.append(Chunk(len(self.chunks) + 1, _exp(own), _exp(self.mean)))
            self._open = []

    @property
    def mean(self) -> float:
        return self.sum / self.n

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        spread = self.squares / self.n - self.mean**2
        return sqrt(max(spread, 0.0) / max(self.n - 1, 1))


OnChunk = Callable[[Chunk, int], None]
"""Called with the figures of each chunk as it is done, and how many there will be."""


def tokens_of(model: Model, text: str | bytes, *, parse_special: bool = False) -> Ids:
    """The tokens of a text as perplexity wants them: BOS where the model has one, no EOS."""
    ids = model.tokenizer.encode(text, add_special=True, parse_special=parse_special)
    if model.tokenizer.add_eos and ids and ids[-1] == model.tokenizer.eos:
        ids = ids[:-1]
    return np.asarray(ids, np.int32)


def perplexity(
    model: Model,
    text: str | bytes | Ids,
    *,
    n_ctx: int = 512,
    chunks: int = -1,
    stride: int = 0,
    on_chunk: OnChunk | None = None,
    **options: Any,
) -> Perplexity:
    """Measure the perplexity of `model` over a text (or token ids).

    n_ctx    tokens a chunk
    chunks   so many chunks at most; -1 is all
    stride   > 0: windows of n_ctx + stride / 2 tokens that move by `stride`, of which the last
             `stride` are scored (as llama-perplexity, BOS is not put in there)
    options  n_batch, n_ubatch, and those of a Context (threads, type_k, flash_attn, ...)

    LlamapyError if the text is too short.
    """
    ids = tokens_of(model, text) if isinstance(text, str | bytes) else np.asarray(text, np.int32)
    if stride < 0:
        raise UsageError(f"the stride is {stride}; 0 is none")
    if stride:
        size = ROUND_CTX * ceil((n_ctx + stride // 2) / ROUND_CTX)
        windows = _windows(ids, size, stride, chunks)
        return _measure(model, windows, size, size - stride - 1, on_chunk, overlap=True, **options)
    return _measure(model, cut(ids, n_ctx, chunks), n_ctx, None, on_chunk, **options)


def _windows(ids: Ids, size: int, stride: int, chunks: int) -> Ids:
    """i32 [n, size]: windows of the strided mode."""
    if not 0 < stride < size:
        raise UsageError(f"a stride of {stride} does not go with windows of {size} tokens")
    if len(ids) < 2 * size:
        raise LlamapyError(
            f"the text has {len(ids)} tokens, but at least {2 * size} are needed"
            f" (two windows of {size})",
            hint="a longer text, or smaller chunks: -c",
        )
    n = -(-(len(ids) - size) // stride)
    return np.stack([ids[i * stride :][:size] for i in range(n if chunks < 0 else min(n, chunks))])


def _measure(
    model: Model,
    chunks: Ids,
    n_ctx: int,
    scored: int | None,
    on_chunk: OnChunk | None,
    *,
    overlap: bool = False,
    **options: Any,
) -> Perplexity:
    evaluator = Evaluator(model, n_ctx, scored=scored, **options)
    totals, n_bytes = Totals(), 0
    with Rows(evaluator.threads) as rows, evaluator.clock as clock:
        for piece in evaluator.run(chunks, bos=not overlap):
            totals.add(rows.nll(piece.logits, piece.targets), last=piece.last)
            n_bytes += byte_length(model, piece.targets)
            if piece.last and on_chunk is not None:
                on_chunk(totals.chunks[-1], len(chunks))
    ppl = _exp(totals.mean)
    error = 0.0 if overlap else totals.error * ppl
    return Perplexity(
        ppl, error, len(totals.chunks), totals.n, n_bytes, totals.chunks, clock.seconds
    )


def byte_length(model: Model, tokens: Sequence[int] | Ids) -> int:
    """Bytes of text that the tokens stand for."""
    return len(model.tokenizer.decode([int(t) for t in tokens], special=True))


def macro_average(several: Sequence[Perplexity]) -> float:
    """The geometric mean: each text counts the same, whatever its length."""
    return _exp(sum(log(one.ppl) for one in several) / len(several))


def _exp(x: float) -> float:
    return exp(x) if x < 709 else float("inf")
