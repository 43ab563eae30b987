"""What is doubtful in a sound container: vocabulary arrays and numbers that a model cannot have.

Tools that use such a model refuse it; `llamapy dump` shows it and warns.
"""

from __future__ import annotations

from collections.abc import Iterator

from llamapy.gguf import keys
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.values import ValueType
from llamapy.tasks.inspect import AnyFile

MAX_BLOCKS = 512  # llama.cpp's LLAMA_MAX_LAYERS

_INTEGERS = (ValueType.INT32, ValueType.UINT32)
_ARRAYS = {
    keys.SCORES: (ValueType.FLOAT32,),
    keys.TOKEN_TYPES: _INTEGERS,
}


def doubts(file: AnyFile) -> list[str]:
    """Everything that looks wrong, one line each; the faults that opening collected come first."""
    problems = [str(problem).removeprefix(f"{problem.path}: ") for problem in file.problems]
    return problems + list(_vocabulary(file.metadata)) + list(_blocks(file))


def _vocabulary(metadata: Metadata) -> Iterator[str]:
    for key in (keys.TOKENS, keys.MERGES):
        if key in metadata and metadata.type(key)[1] is not ValueType.STRING:
            yield f"{key} is {_type(metadata, key)}, not an array of strings"
    if keys.TOKENS not in metadata or metadata.type(keys.TOKENS)[1] is not ValueType.STRING:
        return
    n_tokens = metadata.count(keys.TOKENS)
    for key, allowed in _ARRAYS.items():
        if key in metadata:
            yield from _beside_tokens(metadata, key, allowed, n_tokens)
    yield from _repeated(metadata.raw_strings(keys.TOKENS))
    for key in metadata:
        if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
            value = metadata[key]
            if not isinstance(value, int) or not 0 <= value < n_tokens:
                yield f"{key} is {shown(str(value))[1:-1]}, outside the {n_tokens} tokens"


def _beside_tokens(
    metadata: Metadata, key: str, allowed: tuple[ValueType, ...], n_tokens: int
) -> Iterator[str]:
    if metadata.type(key)[1] not in allowed:
        wanted = " or ".join(kind.name for kind in allowed)
        yield f"{key} is {_type(metadata, key)}, not an array of {wanted}"
    elif metadata.count(key) != n_tokens:
        yield f"{key} has {metadata.count(key)} elements, {keys.TOKENS} has {n_tokens}"


def _repeated(tokens: list[bytes]) -> Iterator[str]:
    if len(set(tokens)) == len(tokens):
        return
    first: dict[bytes, int] = {}
    again = [(i, text) for i, text in enumerate(tokens) if first.setdefault(text, i) != i]
    at, text = again[0]
    more = f", and {len(again) - 1} more" if len(again) > 1 else ""
    yield f"{keys.TOKENS} has {shown(text)} twice, at {first[text]} and {at}{more}"


def _blocks(file: AnyFile) -> Iterator[str]:
    architecture = file.metadata.get(keys.ARCHITECTURE)
    key = keys.of(str(architecture), "block_count")
    value = file.metadata.get(key)
    if not isinstance(value, int):
        return
    if value > MAX_BLOCKS:
        yield f"{key} is {value}, more than {MAX_BLOCKS}"


def _type(metadata: Metadata, key: str) -> str:
    kind, element = metadata.type(key)
    return kind.name if element is None else f"an array of {element.name}"
