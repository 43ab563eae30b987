"""From the options of `llamapy run` to a model, a context, and an answer or a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llamapy.cli import answer, console
from llamapy.cli.conversation import converse
from llamapy.cli.kernels import compiling
from llamapy.core.errors import Aborted, UsageError
from llamapy.runtime import sources
from llamapy.runtime.chat_session import ChatSession, prompt_ids, template_of
from llamapy.runtime.context import Context
from llamapy.runtime.generate import Generation, make_chain, too_long
from llamapy.runtime.memory.kv import cache_type
from llamapy.runtime.model import Model


def open_model(path: Path | None, **options: Any) -> Model:
    """The model of -m, or the default one, fetched with a progress bar at the first use."""
    with console.progress("fetching the model", unit="B") as tick:
        found = sources.resolve(path, tick)
    return Model(found, **options)


@dataclass
class Run:
    """A model and what the command line says of contexts, sampling and generation."""

    model: Model
    context: dict[str, Any]
    sampling: dict[str, Any]
    generation: dict[str, Any]
    system: str

    def __post_init__(self) -> None:
        for name in ("type_k", "type_v"):
            cache_type(self.context[name])

    def answer(self, text: bytes, *, raw: bool, bos: bool, as_json: bool) -> None:
        """Answer once. What cannot fit is refused before any work."""
        ids = self._ids(text, raw=raw, bos=bos)
        n_ctx = self.context["n_ctx"] or self.model.params.n_ctx_train
        if len(ids) > n_ctx:
            raise too_long(len(ids), n_ctx)
        chain = make_chain(self.model, **self.sampling)
        with compiling() as hook:
            context = Context(self.model, on_compile=hook, **self.context)
            generation = Generation(context, ids, chain=chain, **self.generation)
            self._say(context)
            interrupted: BaseException | None = None
            try:
                with answer.interruptible(generation.stop):
                    if as_json:
                        generation.text()
                    else:
                        answer.show(generation)
            except (Aborted, KeyboardInterrupt) as error:
                interrupted = error
        if as_json:
            console.json(answer.as_json(generation.result))
        drawn = self.sampling["seed"] == -1 and chain.params.temp > 0
        answer.timings(generation.result, chain.seed if drawn else None)
        if interrupted is not None:
            raise interrupted

    def _say(self, context: Context) -> None:
        """What weights and context take, which is most of what the run takes."""
        sizes = [self.model.n_bytes, context.memory.n_bytes, context.n_compute_bytes]
        weights, cache, compute = (f"{n / 2**20:.1f} MiB" for n in sizes)
        console.note(f"memory: weights {weights}, cache {cache}, compute buffers {compute}")

    def _ids(self, text: bytes, *, raw: bool, bos: bool) -> list[int]:
        """The prompt's tokens: the text as it is, or a conversation of one message."""
        tokenizer = self.model.tokenizer
        if raw:
            if self.system:
                raise UsageError("--raw and --system do not go together")
            add = bos or not tokenizer.add_bos
            return tokenizer.encode(text, add_special=add, parse_special=True)
        messages = [{"role": "user", "content": text.decode("utf-8", "replace")}]
        if self.system:
            messages.insert(0, {"role": "system", "content": self.system})
        return prompt_ids(self.model, template_of(self.model), messages)

    def talk(self) -> None:
        """Chat at the terminal."""
        with compiling() as hook:
            context = Context(self.model, on_compile=hook, **self.context)
            session = ChatSession(
                context, system=self.system, options=self.generation, **self.sampling
            )
            self._say(context)
            if session.template.is_plain:
                console.note("the model has no chat template: texts go to it as they are")
            converse(session)
