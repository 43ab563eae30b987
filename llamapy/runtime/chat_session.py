"""A conversation with a model: messages, the prompt that they make, and what of it is already in
memory.

Knows templates and generation; prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from llamapy.chat.templates import ChatTemplate
from llamapy.core.errors import LlamapyError
from llamapy.runtime.context import Context
from llamapy.runtime.generate import Generation, Result, make_chain
from llamapy.runtime.model import Model

Message = dict[str, Any]


class ChatSession:
    """Keeps a conversation in sequence 0 of the context. What the next prompt shares with the last
    is not computed again.

    messages   {"role", "content"} each; may be changed between answers
    generation the last one; its `result` has tokens, stop reason and timings
    options    for every Generation, except sampling ones, which make one chain for the whole
               session
    """

    def __init__(
        self,
        context: Context,
        *,
        system: str = "",
        options: Mapping[str, Any] | None = None,
        **sampling: Any,
    ) -> None:
        self.context, self.model = context, context.model
        self.template = template_of(self.model)
        self.chain = make_chain(self.model, **sampling)
        self.options = dict(options or {})
        self.system = system
        self.messages: list[Message] = []
        self.generation: Generation | None = None
        self._held: list[int] = []  # the tokens in memory
        self.clear()

    def clear(self) -> None:
        """Begin a new conversation."""
        self.messages = [{"role": "system", "content": self.system}] if self.system else []

    def reply(self, text: str) -> Iterator[str]:
        """The answer to a message, in pieces. A fault leaves the conversation as it was; an
        interruption keeps what has been said so far."""
        self.messages.append({"role": "user", "content": text})
        return self._answer(undo=1)

    def again(self) -> Iterator[str]:
        """Another answer to the last message. LlamapyError if there is none."""
        if not any(message["role"] == "user" for message in self.messages):
            raise LlamapyError("there is nothing to answer yet")
        while self.messages[-1]["role"] != "user":
            self.messages.pop()
        return self._answer(undo=0)

    @property
    def result(self) -> Result | None:
        """What the last generation gave."""
        return self.generation.result if self.generation else None

    def stop(self) -> bool:
        """End the answer under way soon, as Generation.stop."""
        return self.generation.stop() if self.generation is not None else True

    def _answer(self, undo: int) -> Iterator[str]:
        try:
            ids = prompt_ids(self.model, self.template, self.messages)
            generation = self._start(ids)
        except LlamapyError:
            del self.messages[len(self.messages) - undo :]
            raise
        try:
            yield from generation
        finally:
            self.messages.append({"role": "assistant", "content": generation.result.text})
            known = ids + generation.result.tokens
            self._held = [] if generation.shifted else known[: self.context.memory.pos_max(0) + 1]

    def _start(self, ids: list[int]) -> Generation:
        """A generation for the prompt, of which memory keeps what it already has."""
        same = next(
            (i for i, (a, b) in enumerate(zip(ids, self._held)) if a != b),
            min(len(ids), len(self._held)),
        )
        same = min(same, len(ids) - 1)  # the last token's logits are needed
        if len(ids) > self.context.n_ctx or not self.context.memory.remove(0, same):
            self.context.memory.clear()
            same = 0
        self._held = ids[:same]
        self.generation = Generation(self.context, ids[same:], chain=self.chain, **self.options)
        return self.generation


def template_of(model: Model) -> ChatTemplate:
    """The model's chat template, plain if it has none."""
    tokenizer = model.tokenizer
    bos, eos = tokenizer.bos, tokenizer.eos
    return ChatTemplate.from_metadata(
        model.metadata,
        bos_token=tokenizer.token_text(bos) if bos is not None else "",
        eos_token=tokenizer.token_text(eos) if eos is not None else "",
    )


def prompt_ids(model: Model, template: ChatTemplate, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation that the model is to go on with. What users wrote is never read
    as special tokens; BOS comes once, from the template or from here."""
    spans, tokenizer = template.render_spans(messages), model.tokenizer
    ids = tokenizer.encode_spans(spans, add_special=False)
    if tokenizer.add_bos and tokenizer.bos is not None and not template.begins_with_bos(spans):
        ids.insert(0, tokenizer.bos)
    return ids
