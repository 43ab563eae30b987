"""What compiled code was made from: the source files of a function and of all that it reaches.

numba's own cache looks only at the file of the function itself, so an edit in another file that it
calls would go unseen; here the contents of all of them are part of the key.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from llamapy.core.errors import LlamapyError

_NATIVE = Path(__file__).parent
_STARTED, _OWN = time.time(), os.urandom(16)


def key(function: Any, kinds: tuple[str, ...], more: str) -> str:
    """Sixteen hexadecimal digits for this function, arguments of these kinds, and `more`."""
    labels = tuple(kind[1:] for kind in kinds if kind.startswith("="))
    parts = hashlib.sha256(f"{more} {kinds} {function.__qualname__}".encode())
    for path in sorted(files(function, labels) | _native()):
        parts.update(_digest(path))
    return parts.hexdigest()[:16]


def files(
    function: Any, labels: tuple[str, ...] = (), seen: set[int] | None = None
) -> frozenset[str]:
    """The file of `function` and of every compiled function that it reaches by name, or by type
    for these labels."""
    seen = set() if seen is None else seen
    if id(function) in seen:
        return frozenset()
    seen.add(id(function))
    found = {function.__code__.co_filename}
    space, names = function.__globals__, names_in(function.__code__)
    for name in names:
        value = space.get(name)
        members = [value]
        if isinstance(value, ModuleType) and value.__name__.startswith("llamapy."):
            found.add(str(value.__file__))  # for its constants
            members = [vars(value).get(n) for n in names]
        for member in members:
            for inner in _functions(member, labels):
                found |= files(inner, labels, seen)
    return frozenset(found)


def names_in(code: CodeType) -> set[str]:
    """All global and attribute names that the code and the functions within it use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in(constant)
    return names


def _functions(member: Any, labels: tuple[str, ...]) -> list[FunctionType]:
    """The Python functions behind something that compiled code names."""
    found: list[Any] = [member]
    resolve = getattr(type(member), "found_for", None)  # a ByType
    if resolve is not None:
        for label in labels:
            try:
                found.append(resolve(member, label))
            except (LookupError, LlamapyError):  # a label of another kind
                continue
    # By type: asking a lazy module would import it.
    made = [one.compiled_function for one in found if hasattr(type(one), "compiled_function")]
    return [function for function in made if isinstance(function, FunctionType)]


@cache
def _native() -> frozenset[str]:
    return frozenset(str(path) for path in _NATIVE.rglob("*.py"))


@cache
def _digest(path: str) -> bytes:
    """Of a file's content. One that was edited while this process runs may not be what it imported:
    then a digest that no other process gets, so that nobody takes old code for new."""
    try:
        with open(path, "rb") as file:
            edited = os.fstat(file.fileno()).st_mtime > _STARTED
            return hashlib.sha256(file.read() + (_OWN if edited else b"")).digest()
    except OSError:
        return path.encode()
