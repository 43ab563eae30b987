"""From token ids back to bytes, as llama.cpp's token_to_piece and detokenize."""

from __future__ import annotations

import re
from functools import cache

from llamapy.tokenizers import unicode
from llamapy.tokenizers.vocab import BYTE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocab

SPACE = "\u2581".encode()


@cache
def byte_chars() -> tuple[str, ...]:
    """GPT-2's character for each byte: printable Latin-1 is itself, the rest is U+0100 and up."""
    kept = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in kept else next(others)) for byte in range(256))


@cache
def _char_bytes() -> dict[str, int]:
    return {char: byte for byte, char in enumerate(byte_chars())}


def undo_byte_chars(text: bytes) -> bytes:
    """The bytes that a token of a byte-encoded vocabulary stands for."""
    chars, table = unicode.decode(text), _char_bytes()
    try:
        return bytes(map(table.__getitem__, chars))
    except KeyError:
        unknown = b"[UNK_BYTE_0x%s" + text.replace(b"%", b"%%") + b"]"
        return b"".join(
            bytes([table[c]]) if c in table else unknown % unicode.encode(c).hex().encode()
            for c in chars
        )


def unescape_rwkv(text: bytes) -> bytes:
    r"""Undo \t, \n, \r, \xHH and \ before any other byte."""
    out, at = bytearray(), 0
    while at < len(text):
        byte, at = text[at], at + 1
        if byte != 0x5C or at == len(text):
            if byte != 0x5C:
                out.append(byte)
            continue
        escape, at = text[at], at + 1
        if escape == 0x78:  # x: two digits, whatever they are
            digits, at = text[at : at + 2], at + 2
            if len(digits) == 2:
                values = [d - 0x57 if d >= 0x61 else d - 0x30 for d in digits]
                out.append((values[0] * 16 + values[1]) & 0xFF)
        else:
            out.append({0x74: 9, 0x6E: 10, 0x72: 13}.get(escape, escape))
    return bytes(out)


def _hex_byte(text: bytes) -> bytes:
    """The byte of a token like <0x0A>; zero if it is none, as C's strtol."""
    digits = re.match(rb"[0-9A-Fa-f]{0,2}", text[3:5])
    return bytes([int(digits[0] or b"0", 16)]) if digits else b"\0"


def piece_of(vocab: Vocab, token: int) -> bytes:
    """The bytes that `token` prints, special tokens included."""
    text, attributes = vocab.tokens[token], int(vocab.attributes[token])
    if vocab.algorithm == "none":
        return b""
    if vocab.algorithm == "rwkv":
        return unescape_rwkv(text)
    if vocab.algorithm == "plamo2":
        return (
            _hex_byte(text)
            if re.fullmatch(rb"<0x[0-9A-Fa-f]{2}>", text) and attributes & BYTE
            else text
        )
    if attributes & (CONTROL | UNKNOWN | USER_DEFINED):
        return text
    if attributes & NORMAL:
        escaped = vocab.rules is None or vocab.rules.escape_spaces
        return text.replace(SPACE, b" ") if escaped else undo_byte_chars(text)
    return _hex_byte(text) if attributes & BYTE else b""


def clean_spaces(text: bytes) -> bytes:
    """Drop spaces before punctuation, around lone apostrophes and before contractions."""
    text = re.sub(rb" ([?!.,])", rb"\1", text)
    text = text.replace(b" ' ", b"'")
    return re.sub(rb" ('(?:s|m|re|ve))", rb"\1", text)
