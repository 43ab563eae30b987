"""The vocabulary in a sentencepiece model (tokenizer.model), read from its protocol buffer.

Fields: sentencepiece_model.proto of https://github.com/google/sentencepiece. Only what a vocabulary
needs is read; the file is data, no code is run.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from llamapy.core.errors import FileFormatError

# sentencepiece's types of pieces are those of tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass
class Model:
    """pieces: (bytes, score, type) by id; the rest says how text is prepared."""

    pieces: list[tuple[bytes, float, int]] = field(default_factory=list)
    kind: int = UNIGRAM
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    charsmap: bytes = b""


def read(path: Path) -> Model:
    """Read a model. FileFormatError if it is none."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise FileFormatError(path, f"cannot be read: {error.strerror}") from None
    model = Model()
    try:
        for number, value in _fields(raw):
            if number == 1 and isinstance(value, bytes):
                model.pieces.append(_piece(value))
            elif number == 2 and isinstance(value, bytes):
                model.kind = dict(_fields(value)).get(3, UNIGRAM)  # type: ignore[assignment]
            elif number == 3 and isinstance(value, bytes):
                _normalizer(model, value)
    except (ValueError, struct.error, IndexError):
        raise FileFormatError(path, "is no sentencepiece model") from None
    if not model.pieces:
        raise FileFormatError(path, "is no sentencepiece model: no pieces in it")
    return model


def _normalizer(model: Model, raw: bytes) -> None:
    found = dict(_fields(raw))
    charsmap = found.get(2, b"")
    model.charsmap = charsmap if isinstance(charsmap, bytes) else b""
    model.add_dummy_prefix = bool(found.get(3, 1))
    model.remove_extra_whitespaces = bool(found.get(4, 1))


def _piece(raw: bytes) -> tuple[bytes, float, int]:
    found = dict(_fields(raw))
    text, score, kind = found.get(1, b""), found.get(2, b"\0\0\0\0"), found.get(3, NORMAL)
    if not isinstance(text, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
        raise ValueError
    if not NORMAL <= kind <= BYTE:
        raise ValueError
    return text, struct.unpack("<f", score)[0], kind


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: integers, or bytes as they are."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _varint(raw, at)
            yield number, value
            continue
        if wire == _BYTES:
            size, at = _varint(raw, at)
        else:
            size = {_FIXED64: 8, _FIXED32: 4}.get(wire, -1)
        if size < 0 or at + size > len(raw) or not number:
            raise ValueError
        yield number, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError
