"""The filters of chat templates: jinja2's, guarded where they can make much out of little.

Filters that would lose track of whose text it is, or that make text of unbounded size, are written
anew; those that no chat template needs and that cannot be bounded are gone (`REMOVED`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from jinja2 import Undefined, pass_environment
from jinja2.filters import FILTERS, make_attrgetter
from markupsafe import soft_str

from llamapy.chat.limits import ITEM
from llamapy.chat.tracked import Text, concat, has_user_text, join
from llamapy.core.errors import TemplateError

if TYPE_CHECKING:
    from llamapy.chat.sandbox import ChatEnvironment

REMOVED = ("forceescape", "pprint", "random", "urlize", "xmlattr")
MAX_COUNT = 10_000  # of columns, digits, parts: what a template asks for by number
MAX_INDENT = 64


def replaced() -> dict[str, Callable[..., Any]]:
    """The filters that are written anew: {name: function}."""
    return {
        "indent": indent,
        "join": join_items,
        "replace": replace,
        "format": percent_format,
        "safe": lambda value: value,  # nothing is escaped here
        "sum": sum_numbers,
        "tojson": tojson,
        "center": lambda value, width=80: soft_str(value).center(count(width)),
        "list": list_items,
        "batch": lambda value, n, fill=None: FILTERS["batch"](value, count(n), fill),
        "slice": lambda value, n, fill=None: FILTERS["slice"](value, count(n), fill),
        "round": lambda value, digits=0, method="common": FILTERS["round"](
            value, count(digits), method
        ),
        "wordwrap": wordwrap,
    }


def count(number: Any) -> Any:
    """A number of columns, digits or parts; TemplateError if it is absurd."""
    if isinstance(number, (int, float)) and abs(number) > MAX_COUNT:
        raise TemplateError(f"the chat template asks for a size of {number:g}")
    return number


@pass_environment
def indent(
    env: ChatEnvironment, value: Any, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    """Indent lines by `width` spaces or a text; the first and blank ones only if asked."""
    indention = width if isinstance(width, str) else " " * count(width)
    lines = concat([soft_str(value), "\n"]).splitlines()
    env.budget.fits(len(lines) * len(indention) + len(soft_str(value)))
    out = []
    for i, line in enumerate(lines):
        wanted = (i > 0 or first) and (line or blank or i == 0)
        out.append(concat([indention, line]) if wanted else line)
    return join("\n", out)


@pass_environment
def join_items(
    env: ChatEnvironment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    """Join the items (or an attribute of each) as text."""
    if attribute is not None:
        value = map(make_attrgetter(env, attribute), value)
    items = [str(item) for item in env.budget.each(value)]
    env.budget.fits(sum(map(len, items)) + len(str(d)) * len(items))
    return join(str(d), items)


@pass_environment
def list_items(env: ChatEnvironment, value: Iterable[Any]) -> list[Any]:
    """list(value)."""
    items = []
    for item in env.budget.each(value):
        items.append(item)
        env.budget.fits(len(items) * ITEM)
    return items


@pass_environment
def replace(env: ChatEnvironment, value: Any, old: str, new: str, count: int | None = None) -> str:
    """str.replace."""
    limit = -1 if count is None else count
    texts = soft_str(old), soft_str(new), limit
    replaced: str = env.call_str(soft_str(value), "replace", texts, {})
    return replaced


@pass_environment
def percent_format(env: ChatEnvironment, value: Any, *args: Any, **kwargs: Any) -> str:
    """`value % args`."""
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at once")
    return env.percent(soft_str(value), kwargs or args)


@pass_environment
def sum_numbers(
    env: ChatEnvironment, value: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    """The sum of numbers (lists would take quadratic time)."""
    if attribute is not None:
        value = map(make_attrgetter(env, attribute), value)
    total = start
    for item in env.budget.each(value):
        if not isinstance(item, (int, float)) or not isinstance(total, (int, float)):
            raise TemplateError("the chat template sums what are no numbers")
        total += item
    return total


@pass_environment
def tojson(
    env: ChatEnvironment,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """json.dumps with Hugging Face's defaults: nothing is escaped for HTML."""
    if indent is not None and (len(indent) if isinstance(indent, str) else indent) > MAX_INDENT:
        raise TemplateError(f"the chat template indents JSON by {indent!r}")
    if isinstance(value, Undefined):
        raise TypeError("Object of type Undefined is not JSON serializable")
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    chunks: list[str] = []
    size = 0
    for chunk in env.budget.each(encoder.iterencode(value)):
        size = env.budget.fits(size + len(chunk))
        chunks.append(chunk)
    text = "".join(chunks)
    return Text(text) if has_user_text(value) else text


@pass_environment
def wordwrap(
    env: ChatEnvironment,
    value: Any,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    """Wrap lines at `width`; the result is the user's if anything in it is."""
    env.budget.fits(len(soft_str(value)) * (1 + len(wrapstring or "")))
    args = (count(width), break_long_words, wrapstring, break_on_hyphens)
    wrapped: str = FILTERS["wordwrap"](env, soft_str(value), *args)
    return wrapped
