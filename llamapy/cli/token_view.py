"""Tokens shown to a person: as llama-tokenize's lines, or as coloured pieces."""

from __future__ import annotations

import codecs
import sys
from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text

from llamapy.cli import console

if TYPE_CHECKING:
    from llamapy.tokenizers.tokenizer import Tokenizer

# neighbours differ in lightness as well as in colour, and black is readable on all of them
COLOURS = ("#f4a261", "#8ecae6", "#e9c46a", "#a7c957", "#d0a9f5")
SPECIAL = Style(color="white", bgcolor="#9b2226", bold=True)
PART = "\u2025"
MARKS = str.maketrans({" ": "\u00b7", "\n": "\u23ce", "\t": "\u21e5", "\r": "\u240d"})


def lines(tokenizer: Tokenizer, ids: list[int]) -> None:
    """One line a token: its id and its piece. Bytes as they are, but not to a terminal."""
    shown = bytes if not sys.stdout.isatty() else _for_terminal
    rows = (b"%6d -> '%b'\n" % (token, shown(tokenizer.piece(token))) for token in ids)
    raw(b"".join(rows))


def raw(data: bytes) -> None:
    """Bytes to stdout."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _for_terminal(piece: bytes) -> bytes:
    text = piece.decode("utf-8", "backslashreplace")
    encoding = sys.stdout.encoding or "ascii"
    return console.printable(text).encode(encoding, "backslashreplace")


def coloured(tokenizer: Tokenizer, ids: list[int]) -> None:
    """The text with each piece on a colour of its own, its white space visible.

    Without colours the pieces stand between bars. Lines break where the text's do.
    """
    plain = not console.out().is_terminal or console.out().no_color
    text, shown = Text(), _Pieces()
    for i, token in enumerate(ids):
        piece = tokenizer.piece(token)
        special = not tokenizer.piece(token, special=False) and bool(piece)
        style = SPECIAL if special else Style(color="black", bgcolor=COLOURS[i % len(COLOURS)])
        if plain and i:
            text.append("|")
        text.append(shown.visible(piece, last=i == len(ids) - 1), style)
        if piece.endswith(b"\n"):
            text.append("\n")
    console.out().print(text, soft_wrap=True)
    n_bytes = sum(len(tokenizer.piece(token)) for token in ids)
    per_token = f", {n_bytes / len(ids):.2f} bytes a token" if ids else ""
    console.note(f"{len(ids)} tokens, {n_bytes} bytes{per_token}")


class _Pieces:
    """Pieces in one line each: white space as marks, wrong bytes as hex digits.

    A character that is spread over pieces stands in the last of them, PART in the others.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    def visible(self, piece: bytes, *, last: bool) -> str:
        text = self._decoder.decode(piece, final=last).translate(MARKS)
        return console.printable(text) + (PART if self._decoder.getstate()[0] else "")
