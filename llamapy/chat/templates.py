"""Chat templates: from messages to the prompt that a model was trained on.

A template is a Jinja program that comes with the model (`tokenizer.chat_template`), rendered as
Hugging Face's `apply_chat_template` does. It is run in a closed sandbox with a time limit
(sandbox.py), and the result says which parts the user wrote, so that those are never read as
special tokens. It knows no tokenizer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

import jinja2

from llamapy.chat.limits import ITEM, Budget
from llamapy.chat.sandbox import ChatEnvironment
from llamapy.chat.tracked import Text, spans
from llamapy.core.errors import TemplateError

# For a model without a template: the texts themselves, a line each.
PLAIN = (
    "{% for message in messages %}{{ message.content }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)
KEY = "tokenizer.chat_template"
MAX_SOURCE = 1 << 16
COMPILE_FACTOR = 5
WORD = re.compile("[A-Za-z_-]{1,40}")
Message = Mapping[str, Any]
Spans = list[tuple[str, bool]]


class ChatTemplate:
    """A chat template; `source` "" is the plain one. Nothing is compiled before the first use.

    `time_limit` is in seconds, for each rendering; compiling may take five times that. `now` gives
    the time that `strftime_now` shows. May be shared between threads.
    """

    def __init__(
        self,
        source: str = "",
        *,
        bos_token: str = "",
        eos_token: str = "",
        time_limit: float = 2.0,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source or PLAIN
        self.is_plain = not source
        self.bos_token, self.eos_token = bos_token, eos_token
        self.time_limit, self.now = time_limit, now
        self._lock = threading.Lock()
        self._compiled: jinja2.Template | None = None
        self._environment: ChatEnvironment | None = None

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, Any], *, name: str = "", **options: Any
    ) -> ChatTemplate:
        """The template of a model file, plain if it has none; or its variant `name` (`tool_use`).

        TemplateError for an unknown variant.
        """
        key = f"{KEY}.{name}" if name else KEY
        source = metadata.get(key, "")
        if not isinstance(source, str):
            raise TemplateError(f"{key} is no text")
        if name and not source:
            known = sorted(k.removeprefix(f"{KEY}.") for k in metadata if k.startswith(f"{KEY}."))
            raise TemplateError(
                f"the model has no chat template {name!r}",
                hint=f"it has: {', '.join(known)}" if known else "it has no variants",
            )
        return cls(source, **options)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> str:
        """The prompt for `messages` ({"role": ..., "content": ...} each).

        `kwargs` are handed to the template (`tools`, `documents`, `enable_thinking`, ...).
        TemplateError for everything that goes wrong.
        """
        options = {"add_generation_prompt": add_generation_prompt, **kwargs}
        return "".join([self._render(messages, options)])  # a plain str

    def render_spans(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, **kwargs: Any
    ) -> Spans:
        """`render` in parts: (text, True) is the template's, may hold special tokens, and
        (text, False) is what the user put in and must be tokenized as plain text.

        All texts in `messages` and `kwargs` are the user's (but a role that is a mere word). Text
        whose origin was lost in the template (sorted characters, JSON, ...) counts as the user's if
        any of it may be.
        """
        options = {"add_generation_prompt": add_generation_prompt, **kwargs}
        return spans(self._render(messages, options))

    def begins_with_bos(self, rendered: Spans) -> bool:
        """Whether a rendered prompt already has the BOS token, so that none may be added."""
        text, is_template = rendered[0] if rendered else ("", False)
        return bool(self.bos_token) and is_template and text.startswith(self.bos_token)

    @property
    def writes_bos(self) -> bool:
        """Whether the template itself writes the BOS token (tried with one short message)."""
        try:
            return self.begins_with_bos(self.render_spans([{"role": "user", "content": "x"}]))
        except TemplateError:
            return re.match(r"(\s|\{#.*?#\})*\{\{-?\s*bos_token", self.source, re.S) is not None

    def _render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        try:
            with self._lock:  # one budget at a time
                environment, template = self._compile()
                environment.budget = Budget(self.time_limit)
                return self._run(environment, template, messages, options)
        except TemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"chat template, line {error.lineno}: {error.message}") from error
        except (RecursionError, MemoryError) as error:
            raise TemplateError("the chat template or a message is nested too deeply") from error
        except jinja2.exceptions.SecurityError as error:
            raise TemplateError(f"the chat template is not allowed to do that: {error}") from error
        except Exception as error:  # whatever a template may raise is its fault
            where = _line(error.__traceback__)
            raise TemplateError(f"chat template{where}: {type(error).__name__}: {error}") from error

    def _run(
        self,
        environment: ChatEnvironment,
        template: jinja2.Template,
        messages: Sequence[Message],
        options: Mapping[str, Any],
    ) -> str:
        budget = environment.budget
        values = {"messages": _checked(messages), "tools": None, "documents": None, **options}
        weight = ITEM
        for name, value in values.items():
            values[name], n = freeze(value, budget.known)
            weight += n
        budget.allow_input(weight)
        for message in values["messages"]:
            if WORD.fullmatch(message["role"]):  # a mere word is as good as the template's own
                message["role"] = str.__str__(message["role"])
        special = {"bos_token": self.bos_token, "eos_token": self.eos_token}
        context = template.new_context({**special, **values})
        pieces: list[str] = []
        size = 0
        for piece in template.root_render_func(context):
            size = budget.fits(size + len(piece))
            pieces.append(piece)
        return environment.concat(pieces)

    def _compile(self) -> tuple[ChatEnvironment, jinja2.Template]:
        """The environment and the compiled template; compiling runs nothing of it."""
        if self._environment is None:
            self._environment = ChatEnvironment()
            self._environment.globals["raise_exception"] = _raise_exception
            self._environment.globals["strftime_now"] = self._strftime_now
        if self._compiled is None:
            if len(self.source) > MAX_SOURCE:
                raise TemplateError(f"the chat template has over {MAX_SOURCE} characters")
            self._environment.budget = Budget(self.time_limit * COMPILE_FACTOR)
            self._compiled = self._environment.from_string(self.source)
        return self._environment, self._compiled

    def _strftime_now(self, pattern: str) -> str:
        if len(pattern) > 200 or re.search(r"\d{3}", pattern):
            raise TemplateError("the chat template formats the date with a huge width")
        return self.now().strftime(pattern)


def freeze(value: Any, known: dict[int, int]) -> tuple[Any, int]:
    """(a copy of plain data whose texts are marked as the user's, its weight).

    Weights of containers are noted in `known` by id. TemplateError for what is not plain data.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value, ITEM
    if isinstance(value, str):
        return Text(str.__str__(value)), len(value)
    if isinstance(value, Mapping):
        pairs = [(freeze(k, known), freeze(v, known)) for k, v in value.items()]
        copy: Any = {k: v for (k, _), (v, _) in pairs}
        weight = sum(2 * ITEM + n + m for (_, n), (_, m) in pairs)
    elif isinstance(value, (list, tuple)):
        items = [freeze(item, known) for item in value]
        copy = [item for item, _ in items]
        weight = sum(ITEM + n for _, n in items)
    else:
        raise TemplateError(f"a chat template is given a {type(value).__name__}: not plain data")
    known[id(copy)] = weight + ITEM
    return copy, weight + ITEM


def _checked(messages: Any) -> list[dict[str, Any]]:
    """The messages without what is None in them, as Hugging Face does."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise TemplateError("the messages of a chat must be a list")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise TemplateError(f"message {i} of the chat is no dict with a role: {message!r:.80}")
    return [{k: v for k, v in message.items() if v is not None} for message in messages]


def _raise_exception(message: Any) -> None:
    raise TemplateError(f"the chat template refuses the messages: {message}")


def _line(traceback: TracebackType | None) -> str:
    """ ", line N" of the template, if the fault was in one."""
    found = ""
    while traceback is not None:
        template = traceback.tb_frame.f_globals.get("__jinja_template__")
        if template is not None:
            found = f", line {template.get_corresponding_lineno(traceback.tb_lineno)}"
        traceback = traceback.tb_next
    return found
