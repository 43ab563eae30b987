"""What users write about a quantization: NAME=TYPE entries, KEY=TYPE:VALUE overrides, recipes.

Spellings are llama-quantize's (tools/quantize/quantize.cpp); recipes are our own, in TOML.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from llamapy.core.errors import FileFormatError, UsageError
from llamapy.core.log import log
from llamapy.tasks import file_types
from llamapy.tasks.quantize_plan import Choices, Override

_MAX_KEY = 127  # bytes of a key, and of a text, that llama.cpp takes
_MAX_U32 = 2**32 - 1


def tensor_type(text: str) -> tuple[str, str]:
    """`NAME=TYPE` as (pattern, type). The pattern is lower-cased, as llama-quantize does."""
    name, equals, kind = text.partition("=")
    if not equals or not name or not kind:
        raise UsageError(f"{text!r} is not NAME=TYPE", hint="such as --tensor-type attn_v=q8_0")
    return name.lower(), kind


def tensor_type_file(path: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """The entries of a file, separated by white space."""
    return [tensor_type(entry) for entry in _text(path).split()]


def override(text: str) -> tuple[str, Override]:
    """`KEY=int|float|bool|str:VALUE` as (key, value), as llama-quantize stores it."""
    key, equals, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    if not (equals and colon and key) or len(key.encode()) > _MAX_KEY or kind not in _PARSERS:
        raise UsageError(
            f"{text!r} is not KEY=TYPE:VALUE", hint="types are int, float, bool and str"
        )
    try:
        return key, _PARSERS[kind](value)
    except ValueError:
        raise UsageError(f"{text!r}: {value!r} is no {kind}") from None


def _integer(text: str) -> int:
    value = int(text)
    if abs(value) > _MAX_U32:
        raise UsageError(f"{text} does not fit in 32 bits")
    if value < 0:
        log.warning("%s is stored as %s: overriding integers have no sign", value, -value)
    return abs(value)


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _string(text: str) -> str:
    if len(text.encode("utf-8", "surrogateescape")) > _MAX_KEY:
        raise UsageError(f"an overriding text has at most {_MAX_KEY} bytes")
    return text


_PARSERS: dict[str, Callable[[str], Override]] = {
    "int": _integer,
    "float": float,
    "bool": _boolean,
    "str": _string,
}


def layers(text: str) -> list[int]:
    """`3,7` as layer numbers, sorted, each once."""
    try:
        found = sorted({int(part) for part in text.split(",")} if text else set())
    except ValueError:
        found = [-1]
    if any(n < 0 for n in found):
        raise UsageError(f"{text!r} is no list of layers", hint="such as --prune-layers 3,7")
    return found


@dataclass(frozen=True)
class Recipe:
    """A recipe file: a file type, if it names one, and what it says about tensors."""

    file_type: str
    choices: Choices


_TEXTS = {"output": "output", "token_embedding": "token_embedding"}
_FLAGS = ("pure", "leave_output", "no_fallback", "allow_requantize")


def recipe(path: str | os.PathLike[str], choices: Choices) -> Recipe:
    """Read a recipe; what `choices` says already stays. FileFormatError names the bad entry.

    type = "q4_k_m"            # the file type, unless the command line names one
    output = "q6_k"            # also token_embedding, pure, leave_output, no_fallback
    [tensors]                  # patterns in order, the first that is found counts
    'attn_v' = "q6_k"
    'blk\\.(0|1)\\.' = "keep"    # as it is
    """
    table = _toml(path)
    known = {"type", "tensors", *_TEXTS, *_FLAGS}
    unknown = sorted(set(table) - known)
    if unknown:
        raise FileFormatError(
            path, f"unknown entry {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}"
        )
    tensors = _checked(path, "tensors", table.get("tensors", {}), dict)
    for name, kind in tensors.items():
        _checked(path, f"tensors.{name}", kind, str)
    texts = {
        ours: getattr(choices, ours) or _checked(path, key, table.get(key, ""), str)
        for key, ours in _TEXTS.items()
    }
    flags = {
        key: getattr(choices, key) or _checked(path, key, table.get(key, False), bool)
        for key in _FLAGS
    }
    file_type = _checked(path, "type", table.get("type", ""), str)
    listed = (*choices.recipe, *tensors.items())
    return Recipe(file_type, replace(choices, recipe=listed, **texts, **flags))


def _toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise FileFormatError(path, f"is no TOML: {error}") from None


def _checked(path: str | os.PathLike[str], name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise FileFormatError(path, f"must be a {_WORDS[kind]}", field=f"entry {name!r}")
    return value


def positionals(
    source: str | os.PathLike[str],
    rest: Sequence[str],
    named: str,
    keep_split: bool,
    *,
    default: str = "",
    by_size: bool = False,
) -> tuple[str, str, int]:
    """Output, file type and threads from what follows the input: [OUT] [TYPE] [THREADS].

    As in llama-quantize the output may be left out, unless `named`, the type of --type, is given:
    then the first word is the output. default: a type if the words name none. by_size: `named`
    stands for a size, beside which there is no type.
    """
    words = list(rest)
    target = words.pop(0) if words and (named or not file_types.find(words[0])) else ""
    given = words.pop(0) if words and not (named and words[0].isdigit()) else ""
    counted = words.pop(0) if words else "0"
    if by_size and file_types.find(given):
        raise UsageError("--target-bpw, --target-size and a file type do not go together")
    if words or not counted.isdigit():
        raise UsageError(f"{(words or [counted])[-1]!r} is one argument too many")
    given = given or ("" if named else default)
    if not (given or named):
        raise UsageError("no file type is given", hint="such as q4_k_m, after the output")
    found = file_types.parse(given or named)
    if named and file_types.parse(named) != found:
        raise UsageError(f"--type says {named}, the arguments say {given}")
    if not target:
        name = f"ggml-model-{found.name}" + ("" if keep_split else ".gguf")
        target = os.path.join(os.path.dirname(os.fspath(source)), name)
    return target, found.name, int(counted)


_WORDS = {str: "text", bool: "true or false", dict: "table"}


def _text(path: str | os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise FileFormatError(path, f"cannot be opened: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(path, "is not UTF-8 text", offset=error.start) from None


def tensor_types(
    entries: Iterable[str], files: Sequence[str | os.PathLike[str]] = ()
) -> list[tuple[str, str]]:
    """All entries, then those of the files."""
    found = [tensor_type(entry) for entry in entries]
    for path in files:
        found += tensor_type_file(path)
    return found
