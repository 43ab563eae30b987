"""Tokenizing without the model: a vocabulary from a file, and ids from text."""

from __future__ import annotations

import re
from pathlib import Path

from llamapy.core.errors import UsageError
from llamapy.gguf.reader import GGUFFile
from llamapy.tokenizers.tokenizer import Tokenizer, load

_IDS = re.compile(rb"\s*\[?\s*(\d{1,10}(?:(?:\s*,\s*|\s+)\d{1,10})*)?\s*,?\s*\]?\s*")


def open_tokenizer(path: Path, pre: str | None = None) -> Tokenizer:
    """The tokenizer of a GGUF file; nothing but its metadata is read.

    pre: name of a pre-tokenizer in place of the file's. FileFormatError, TokenizerError.
    """
    with GGUFFile(path) as file:
        return load(file.metadata, pre)


def parse_ids(text: bytes) -> list[int]:
    """Token ids from text: numbers between commas or white space, in brackets or not."""
    found = _IDS.fullmatch(text)
    if found is None:
        shown = text[:40].decode("utf-8", "backslashreplace")
        raise UsageError(f"no token ids: {shown!r}", hint="--decode wants numbers, like 1, 2, 3")
    return [int(number) for number in re.findall(rb"\d+", found[1] or b"")]
