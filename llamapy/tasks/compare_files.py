"""Two GGUF files side by side: metadata and tensors that differ. Prints nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from llamapy.gguf.metadata import Metadata
from llamapy.gguf.reader import Bytes, TensorInfo
from llamapy.tasks.inspect import TEXT, AnyFile, item, type_name

_PIECE = 16 << 20  # bytes compared at once
_ABSENT = "-"
_ALIKE = 16  # characters: texts that begin alike for longer are shown from where they part


@dataclass(frozen=True)
class Difference:
    """One thing that differs: its name, and how it is in either file ("-": not at all)."""

    name: str
    a: str
    b: str


def compare_metadata(a: Metadata, b: Metadata) -> list[Difference]:
    """Keys that only one has, or that differ in type or value; a's order, then what only b has."""
    return [
        Difference(key, *_texts(a, b, key))
        for key in dict.fromkeys([*a, *b])
        if not (key in a and key in b and _same(a, b, key))
    ]


def _same(a: Metadata, b: Metadata, key: str) -> bool:
    return a.type(key) == b.type(key) and a.payload(key, "<") == b.payload(key, "<")


def _texts(a: Metadata, b: Metadata, key: str) -> tuple[str, str]:
    """How the value is on both sides; of long ones the place where they part."""
    if key in a and key in b and a.type(key) == b.type(key):
        x, y = a[key], b[key]
        if isinstance(x, str) and isinstance(y, str):
            at = _first(x, y)
            if at >= _ALIKE:
                return _from(x, at), _from(y, at)
        elif isinstance(x, list) and isinstance(y, list) and len(x) == len(y):
            at = _first(x, y)
            if at < len(x):
                return f"[{at}] = {x[at]!r}", f"[{at}] = {y[at]!r}"
    return _text(a, key), _text(b, key)


def _from(text: str, at: int) -> str:
    start = at - _ALIKE // 2
    return f"[{at}] ...{text[start : start + TEXT]}"


def _text(metadata: Metadata, key: str) -> str:
    if key not in metadata:
        return _ABSENT
    found = item(metadata, metadata.entry(key))
    return f"{found.type} {found.text}"


def _first(x: Sequence[object], y: Sequence[object]) -> int:
    """The first index at which two sequences differ, or the length of the shorter one."""
    both = zip(x, y)
    return next((i for i, pair in enumerate(both) if _unlike(*pair)), min(len(x), len(y)))


def _unlike(x: object, y: object) -> bool:
    return x != y and not (x != x and y != y)  # a NaN is like a NaN


def compare_tensors(
    a: AnyFile, b: AnyFile, on_done: Callable[[int], None] | None = None
) -> list[Difference]:
    """Tensors that only one has, or that differ in type, shape or bytes.

    on_done: told how many of a's bytes are compared by now.
    """
    in_a = {info.name: info for info in a.tensors}
    in_b = {info.name: info for info in b.tensors}
    found, done = [], 0
    for name in dict.fromkeys([*in_a, *in_b]):
        one, other = in_a.get(name), in_b.get(name)
        sides = [_kind(one), _kind(other)]
        if one is not None and other is not None and sides[0] == sides[1]:
            n_different = _different_bytes(a.bytes(one), b.bytes(other))
            if n_different:
                sides[1] = f"{n_different} of {one.n_bytes} bytes differ"
        if sides[0] != sides[1]:
            found.append(Difference(name, sides[0], sides[1]))
        done += one.n_bytes if one is not None else 0
        if on_done is not None:
            on_done(done)
    return found


def _kind(info: TensorInfo | None) -> str:
    """Type and shape, without the trailing ones that some writers store and others drop."""
    if info is None:
        return _ABSENT
    shape = list(info.ne)
    while len(shape) > 1 and shape[-1] == 1:
        shape.pop()
    return f"{type_name(info.type_id)} {' x '.join(map(str, shape or [1]))}"


def _different_bytes(a: Bytes, b: Bytes) -> int:
    count = 0
    for start in range(0, len(a), _PIECE):
        x, y = a[start : start + _PIECE], b[start : start + _PIECE]
        if not np.array_equal(x, y):
            count += int(np.count_nonzero(x != y))
    return count
