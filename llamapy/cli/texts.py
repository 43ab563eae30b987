"""Where a command's text comes from: an option, a file, or what is piped in."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from llamapy.core.errors import LlamapyError, UsageError

ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}


def prompt_of(text: str | None, file: Path | None, *, escapes: bool) -> bytes | None:
    """The bytes of the prompt: of -p, of the file of -f (- is stdin), or of what is piped in; None
    where a person sits at stdin. Escapes are for -p only: files are taken as they are."""
    if text is not None and file is not None:
        raise UsageError("-p and -f do not go together")
    if text is not None:
        return argument(text, escapes=escapes).encode("utf-8", "surrogateescape")
    if file is not None and str(file) != "-":
        return _read(file)
    if file is None and (sys.stdin is None or sys.stdin.isatty()):
        return None
    return sys.stdin.buffer.read()


def argument(text: str, *, escapes: bool) -> str:
    r"""A text from the command line; with `escapes`, \n, \t, \\ and the like mean what they mean in
    C, and \xHH is a byte (two hex digits)."""
    return re.sub(r"\\(?:x([0-9a-fA-F]{2})|(.))", _escaped, text, flags=re.S) if escapes else text


def _escaped(found: re.Match[str]) -> str:
    digits, letter = found.groups()
    if digits is not None:  # as Python holds such bytes in arguments
        return bytes([int(digits, 16)]).decode("utf-8", "surrogateescape")
    return ESCAPES.get(letter, found.group())


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise LlamapyError(f"{file}: cannot be read: {error.strerror}") from None
