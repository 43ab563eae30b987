"""Files are the registry: samplers by file name, and the two ways to write an order of them."""

from __future__ import annotations

from functools import cache
from typing import Any

from llamapy.core.discover import load, names
from llamapy.core.errors import UsageError
from llamapy.core.log import log

PACKAGE = "llamapy.samplers"
NOT_A_STEP = ("chain",)


@cache
def sampler_names() -> tuple[str, ...]:
    """The names of all samplers: the files of this package."""
    return tuple(name for name in names(PACKAGE) if name not in NOT_A_STEP)


@cache
def sampler_class(name: str) -> type[Any]:
    """The `Sampler` that file `name` defines. UsageError if there is no such file."""
    if name not in sampler_names():
        raise UsageError(f"no sampler {name!r}", hint=f"there are: {', '.join(sampler_names())}")
    module = load(PACKAGE, name)
    for value in vars(module).values():
        if getattr(value, "__module__", "") == module.__name__ and hasattr(value, "from_setup"):
            found: type[Any] = value
            return found
    raise LookupError(f"{module.__name__} defines no sampler")


def parse_order(text: str, *, strict: bool = True) -> tuple[str, ...]:
    """Read an order of samplers: names by semicolons (`top_k;temperature`) or letters (`kt`).

    Names may be written with dashes or without any (`top-k`, `topk`). An unknown one raises
    UsageError, or is left out with a warning unless `strict`.
    """
    text = text.strip().lower()
    by_name, by_letter = _names(), _letters()
    words = [word.strip() for word in text.split(";") if word.strip()]
    spelled = len(words) > 1 or text in by_name
    known = by_name if spelled else by_letter
    order = []
    for word in words if spelled else text:
        if word in known:
            order.append(known[word])
        elif strict:
            hint = f"names: {', '.join(sorted(set(by_letter.values())))}; or letters: "
            raise UsageError(f"no sampler {word!r}", hint=hint + "".join(sorted(by_letter)))
        else:
            log.warning("unknown sampler %r left out", word)
    return tuple(order)


def _names() -> dict[str, str]:
    """Every spelling of every sampler that may stand in an order: {spelling: name}."""
    spellings = {}
    for name in sampler_names():
        cls = sampler_class(name)
        if cls.letter:
            for word in (name, name.replace("_", "-"), name.replace("_", ""), *cls.aliases):
                spellings[word] = name
    return spellings


def _letters() -> dict[str, str]:
    """{letter: name} of the samplers that may stand in an order."""
    pairs = ((sampler_class(name).letter, name) for name in sampler_names())
    return {letter: name for letter, name in pairs if letter}
