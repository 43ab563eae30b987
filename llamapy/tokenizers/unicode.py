"""Text as llama.cpp's tokenizers see it: lenient UTF-8, categories, lower case, decomposition.

The tables (`unicode.npz`, written by tools/record_unicode.py) are llama.cpp's own; ASCII text never
loads them.
"""

from __future__ import annotations

import codecs
from functools import cache
from importlib.resources import files
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

N_CODE_POINTS = 0x110000

# categories as flags, as in unicode.npz
UNDEFINED, NUMBER, LETTER, SEPARATOR = 1, 2, 4, 8
MARK, PUNCTUATION, SYMBOL, CONTROL = 16, 32, 64, 128

# what a code point above ASCII becomes in "collapsed" text, on which the split patterns run
OTHER_CHAR, NUMBER_CHAR, LETTER_CHAR = "\xd0\xd1\xd2"
PUNCTUATION_CHAR, MARK_CHAR, SYMBOL_CHAR = "\xd3\xd4\xd5"
HAN_LETTER_CHAR, HAN_OTHER_CHAR = "\xd6\xd7"  # only in text that is collapsed with han=True
WHITE_CHAR = "\x0b"

HAN_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2EBEF),
    (0x2F800, 0x2FA1F),
)


def decode(data: bytes) -> str:
    """Code points of UTF-8. Surrogates and overlong forms pass, other wrong bytes become U+FFFD."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("utf-8", "llamapy-lenient")


def encode(text: str) -> bytes:
    """UTF-8 bytes of `text`, lone surrogates as three bytes each."""
    return text.encode("utf-8", "surrogatepass")


def sequence_length(data: bytes, at: int) -> int:
    """Bytes of the code point that starts at `at`, taken leniently; 0 if none starts there."""
    lead = data[at]
    if lead < 0x80:
        return 1
    n_bytes = 0 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    tail = data[at + 1 : at + n_bytes]
    if lead >= 0xF8 or len(tail) != n_bytes - 1 or not all(b & 0xC0 == 0x80 for b in tail):
        return 0
    return n_bytes


def _lenient(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    at = error.start
    length = sequence_length(error.object, at)
    if length:
        code = error.object[at] & (0x7F >> length)
        for byte in error.object[at + 1 : at + length]:
            code = code << 6 | byte & 0x3F
        if code < N_CODE_POINTS:
            return chr(code), at + length
    return "\ufffd", at + 1


codecs.register_error("llamapy-lenient", _lenient)


@cache
def _tables() -> dict[str, Any]:
    with np.load(BytesIO(files(__package__).joinpath("unicode.npz").read_bytes())) as data:
        return {name: data[name] for name in data.files}


@cache
def categories() -> NDArray[np.uint8]:
    """Category flag of every code point, uint8 [0x110000]."""
    tables = _tables()
    return np.repeat(tables["flags"][:-1], np.diff(tables["starts"].astype(np.int64)))


@cache
def white_space() -> frozenset[int]:
    """Code points that are white space."""
    return frozenset(_tables()["white"].tolist())


@cache
def lower_table() -> dict[int, int]:
    """Code point -> its lower case, for str.translate."""
    return dict(_tables()["lower"].tolist())


@cache
def nfd_table() -> dict[int, int]:
    """Code point -> first code point of its canonical decomposition, for str.translate."""
    return {
        code: int(first)
        for start, end, first in _tables()["nfd"].tolist()
        for code in range(start, end + 1)
    }


@cache
def _wide_white() -> dict[int, str]:
    return {code: WHITE_CHAR for code in white_space() if code > 0x7F}


@cache
def _collapsed(han: bool) -> NDArray[np.uint8]:
    table: NDArray[np.uint8] = np.full(N_CODE_POINTS, ord(OTHER_CHAR), np.uint8)
    flags = categories()
    for flag, char in (
        (NUMBER, NUMBER_CHAR),
        (LETTER, LETTER_CHAR),
        (PUNCTUATION, PUNCTUATION_CHAR),
        (MARK, MARK_CHAR),
        (SYMBOL, SYMBOL_CHAR),
    ):
        table[flags == flag] = ord(char)
    for start, end in HAN_RANGES if han else ():
        part = table[start : end + 1]
        letters = part == ord(LETTER_CHAR)
        part[:] = np.where(letters, ord(HAN_LETTER_CHAR), ord(HAN_OTHER_CHAR))
    table[list(white_space())] = ord(WHITE_CHAR)
    table[:128] = np.arange(128)
    return table


def code_points(text: str) -> NDArray[np.uint32]:
    """Code points of `text`, uint32 [len(text)]."""
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.dtype("<u4"))


def byte_offsets(text: str, places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where code points number `places` of `text` begin in its UTF-8 form."""
    if text.isascii():
        return places
    codes = code_points(text)
    offsets = np.zeros(len(codes) + 1, np.int64)
    lengths = 1 + (codes > 0x7F).astype(np.int64) + (codes > 0x7FF) + (codes > 0xFFFF)
    np.cumsum(lengths, out=offsets[1:])
    return offsets[places]


def collapse(text: str, *, han: bool = False) -> str:
    """`text` with each character above ASCII replaced by its category's; same length."""
    if text.isascii():
        return text
    flat: bytes = _collapsed(han)[code_points(text)].tobytes()
    return flat.decode("latin-1")


def plain_white(text: str) -> str:
    """`text` with white space above ASCII replaced by U+000B; same length."""
    return text if text.isascii() else text.translate(_wide_white())
