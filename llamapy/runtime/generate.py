"""Generation: a prompt goes in, text comes out piece by piece until something ends it.

Knows contexts, samplers and stops; does not know chats or terminals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

from llamapy.core.errors import Aborted, ContextFullError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model
from llamapy.runtime.stop import split_stops
from llamapy.runtime.stream import TextStream
from llamapy.samplers._sampler import Breakers
from llamapy.samplers.chain import Chain, SamplerParams
from llamapy.tokenizers.tokenizer import Tokenizer
from llamapy.tokenizers.vocab import CONTROL

UNTIL_FULL = -2  # of n_predict; -1 is without end


@dataclass
class Timings:
    """Counts and seconds; making and compiling graphs is counted apart. The first token comes out
    of the prompt's evaluation: `tokens_per_second` counts the evaluations after it."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    eval_tokens: int = 0
    eval_seconds: float = 0.0
    sample_seconds: float = 0.0
    compile_seconds: float = 0.0
    total_seconds: float = 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        return self.prompt_tokens / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.eval_tokens / self.eval_seconds if self.eval_seconds else 0.0

    def as_dict(self) -> dict[str, float]:
        """All numbers by name."""
        return asdict(self) | {
            "prompt_tokens_per_second": self.prompt_tokens_per_second,
            "tokens_per_second": self.tokens_per_second,
        }


@dataclass
class Result:
    """What a generation has given so far.

    prompt_tokens  ids of the prompt
    tokens         ids that were generated, the one that ended it included
    text           what was shown
    stop_reason    "eos" (an end-of-generation token), "stop" (a stop text), "length" (n_predict),
                   "context" (no room left), "interrupted"; "" while it goes on
    stop           the stop text that ended it
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    stop_reason: str = ""
    stop: str = ""
    timings: Timings = field(default_factory=Timings)


class Generation:
    """An iterator of pieces of text; `result` holds the whole, also while it goes on.

    context        goes on after what its memory holds of sequence 0
    prompt         text, or token ids
    n_predict      tokens at most; -1 is no limit, -2 until the context is full
    stop           texts that end generation and are not shown (a control token's text: its id ends
                   it)
    context_shift  when the context is full, forget half of what follows the first n_keep positions,
                   and go on
    special        show control tokens
    parse_special  let control tokens' texts in `prompt` be those tokens
    chain          a sampler chain to use on; else one is made of `sampling`: fields of
                   SamplerParams, defaults from the model file

    UsageError for an empty prompt, ContextFullError (before any work) for one that does not fit.
    """

    def __init__(
        self,
        context: Context,
        prompt: str | Sequence[int],
        *,
        n_predict: int = -1,
        stop: Sequence[str] = (),
        context_shift: bool = False,
        n_keep: int = 0,
        special: bool = False,
        parse_special: bool = False,
        chain: Chain | None = None,
        **sampling: Any,
    ) -> None:
        self.context, self.model = context, context.model
        self.tokenizer = self.model.tokenizer
        self.n_predict, self.context_shift, self.n_keep = n_predict, context_shift, n_keep
        self.special = special
        if n_predict < UNTIL_FULL:
            raise UsageError(
                f"n_predict is {n_predict}; -1 is no limit, -2 until the context is full"
            )
        ids = self._tokens(prompt, parse_special)
        self.result = Result(ids)
        self.n_past = context.memory.pos_max(0) + 1
        if self.n_past + len(ids) > context.n_ctx:
            raise too_long(self.n_past + len(ids), context.n_ctx)
        self.chain = chain or make_chain(self.model, **sampling)
        self.stop_ids, texts = split_stops(stop, control_ids(self.tokenizer, stop))
        self._stream = TextStream(texts)
        self.shifted = False  # whether positions have been moved
        self._stopped = False
        self._pieces = self._run()

    def _tokens(self, prompt: str | Sequence[int], parse_special: bool) -> list[int]:
        if not isinstance(prompt, str):
            ids = [int(token) for token in prompt]
        else:
            ids = self.tokenizer.encode(prompt, add_special=True, parse_special=parse_special)
        if not ids and self.tokenizer.bos is not None:
            ids = [self.tokenizer.bos]
        if not ids:
            raise UsageError("the prompt is empty")
        return ids

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    def text(self) -> str:
        """Run to the end; the whole text."""
        for _ in self:
            pass
        return self.result.text

    def stop(self) -> bool:
        """End soon, with stop_reason "interrupted" and Aborted raised. From any thread, or a signal
        handler. False if it takes a while to be heard, because kernels are being compiled."""
        self._stopped = True
        self.context.abort()
        return not self.context.compiling

    def _run(self) -> Iterator[str]:
        start, compiled = perf_counter(), self.context.compile_seconds
        try:
            self._read_prompt()
            ended = self.n_predict == 0
            self.result.stop_reason = "length" if ended else ""
            while not ended:
                token = self._choose()
                piece, ended = self._take(token)
                if ended:
                    piece += self._rest()
                self.result.text += piece
                self.result.timings.total_seconds = perf_counter() - start
                if piece:
                    yield piece
                if not ended:
                    self._evaluate(token)
        except (Aborted, KeyboardInterrupt):
            self.result.stop_reason = "interrupted"
            raise
        finally:
            timings = self.result.timings
            timings.total_seconds = perf_counter() - start
            timings.compile_seconds = self.context.compile_seconds - compiled

    def _read_prompt(self) -> None:
        """Evaluate the prompt in batches and let the sampler know it."""
        timings, ids = self.result.timings, self.result.prompt_tokens
        start, size = self._clock(), self.context.n_batch
        for at in range(0, len(ids), size):
            self._check_stopped()
            last = at + size >= len(ids)
            self._logits = self.context.decode(
                Batch(ids[at : at + size], outputs="last" if last else "none")
            )
            self.n_past += len(ids[at : at + size])
        timings.prompt_tokens += len(ids)
        timings.prompt_seconds += self._clock() - start
        for token in ids:
            self.chain.accept(token)
        if self.n_predict not in (0, 1):
            self.context.prepare()

    def _choose(self) -> int:
        start = perf_counter()
        token = self.chain.sample(self._logits[0])
        self.chain.accept(token)
        self.result.timings.sample_seconds += perf_counter() - start
        return token

    def _take(self, token: int) -> tuple[str, bool]:
        """(text that the token completes, whether it is the last)."""
        result = self.result
        result.tokens.append(token)
        if self.tokenizer.is_eog(token) or token in self.stop_ids:
            by_id = token in self.stop_ids
            result.stop_reason = "stop" if by_id else "eos"
            result.stop = self.tokenizer.token_text(token) if by_id else ""
            return "", True
        piece, stopped = self._stream.push(self.tokenizer.piece(token, special=self.special))
        if stopped:
            result.stop_reason, result.stop = "stop", self._stream.stopped_by or ""
        elif 0 <= self.n_predict <= len(result.tokens):
            result.stop_reason = "length"
        elif self.n_past >= self.context.n_ctx and (
            not self.context_shift or self.n_predict == UNTIL_FULL
        ):
            result.stop_reason = "context"
        return piece, bool(result.stop_reason)

    def _rest(self) -> str:
        """What was held back, at the end; nothing follows a stop text."""
        return "" if self._stream.stopped_by is not None else self._stream.finish()

    def _evaluate(self, token: int) -> None:
        self._check_stopped()
        start = self._clock()
        if self.n_past >= self.context.n_ctx:
            self._shift()
        self._logits = self.context.decode([token], copy=False)
        self.n_past += 1
        self.result.timings.eval_tokens += 1
        self.result.timings.eval_seconds += self._clock() - start

    def _clock(self) -> float:
        """Seconds without those of compiling."""
        return perf_counter() - self.context.compile_seconds

    def _shift(self) -> None:
        """Forget half of the positions after the first n_keep, and move the rest down."""
        keep = min(self.n_keep, self.n_past - 2)
        n = (self.n_past - keep) // 2
        memory = self.context.memory
        memory.remove(0, keep, keep + n)
        memory.shift(0, keep + n, -1, -n)
        self.n_past -= n
        self.shifted = True

    def _check_stopped(self) -> None:
        if self._stopped:
            raise Aborted("the generation was interrupted")


def make_chain(model: Model, **sampling: Any) -> Chain:
    """A sampler chain: what the caller set, else what the model file says, else llama.cpp's
    defaults."""
    tokenizer = model.tokenizer
    params = SamplerParams.from_metadata(model.metadata, **sampling)
    return Chain(
        params,
        model.n_vocab,
        eog_ids=tokenizer.eog_ids,
        suppress_ids=tokenizer.suppress_ids,
        dry_breakers=_dry_breakers(params, tokenizer),
    )


def _dry_breakers(params: SamplerParams, tokenizer: Tokenizer) -> Breakers | None:
    """Where DRY's repetitions end. It looks at every token's text, so only when DRY is on."""
    if not params.dry_multiplier:
        return None
    from llamapy.samplers.dry import breaker_sequences

    pieces = [tokenizer.piece(token) for token in range(tokenizer.n_vocab)]

    def tokenize(text: bytes) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    return breaker_sequences(params.dry_sequence_breakers, pieces, tokenize)


def control_ids(tokenizer: Tokenizer, texts: Sequence[str]) -> dict[str, int]:
    """{text: id} of those texts that are control tokens: they print nothing, so only their id can
    be seen."""
    found = {text: tokenizer.token_id(text) for text in texts}
    return {t: i for t, i in found.items() if i is not None and tokenizer.attr(i) & CONTROL}


def too_long(n_tokens: int, n_ctx: int) -> ContextFullError:
    return ContextFullError(
        f"the prompt has {n_tokens} tokens, but the context only {n_ctx}",
        hint="a larger context: -c / n_ctx",
    )
