"""WordPiece vocabularies (type "bert"): normalized words, each matched greedily, longest first.

A word that cannot be covered whole is one unknown token. Words are remembered with their ids.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.cover_kernels import ALONE, APART, DROPPED
from llamapy.tokenizers.long_covers import WpmTexts
from llamapy.tokenizers.long_texts import worthwhile
from llamapy.tokenizers.pieces import SPACE
from llamapy.tokenizers.vocab import Vocab
from llamapy.tokenizers.words import KnownWords

# each of these is a word of its own; the gap after U+2B81F is that of the Hugging Face original
IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class _Normalizer(dict[int, str]):
    """What a code point becomes, for str.translate: words are set apart by spaces."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        self._lower = unicode.lower_table() if lowercase else {}
        self._strip = strip_accents
        self._nfd = unicode.nfd_table() if strip_accents else {}

    def __missing__(self, code: int) -> str:
        self[code] = result = self._normalize(self._nfd.get(code, code))
        return result

    def _normalize(self, code: int) -> str:
        flags = int(unicode.categories()[code])
        if code in unicode.white_space():
            return " "
        if code in (0, 0xFFFD) or flags & unicode.CONTROL:
            return ""
        if self._strip and flags & unicode.MARK:
            return ""
        char = chr(self._lower.get(code, code))
        alone = flags & unicode.PUNCTUATION or (code < 0x7F and flags & unicode.SYMBOL)
        if alone or any(first <= code <= last for first, last in IDEOGRAPHS):
            return f" {char} "
        return char


def normal_forms(vocab: Vocab) -> NDArray[np.uint32]:
    """_Normalizer as a table for compiled code (cover_kernels.py), uint32 [0x110000]."""
    codes = np.arange(unicode.N_CODE_POINTS, dtype=np.uint32)
    lower = codes.copy()
    if vocab.strip_accents:
        mapped = unicode.nfd_table()
        codes[list(mapped)] = list(mapped.values())
    if vocab.lowercase:
        mapped = unicode.lower_table()
        lower[list(mapped)] = list(mapped.values())
    flags = unicode.categories()[codes]
    white = np.isin(codes, list(unicode.white_space()))
    dropped = (codes == 0) | (codes == 0xFFFD) | ((flags & unicode.CONTROL) != 0)
    if vocab.strip_accents:
        dropped |= (flags & unicode.MARK) != 0
    alone = (flags & unicode.PUNCTUATION) != 0
    alone |= (codes < 0x7F) & ((flags & unicode.SYMBOL) != 0)
    for first, last in IDEOGRAPHS:
        alone |= (first <= codes) & (codes <= last)
    forms = lower[codes] | np.where(alone, ALONE, 0)
    forms = np.where(dropped, DROPPED, forms)
    return np.where(white, APART, forms).astype(np.uint32)


class Wpm:
    """Encoder of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        unknown = vocab.special["unk"]
        if unknown is None:
            raise TokenizerError("tokenizer.ggml.unknown_token_id is missing")
        self._vocab = vocab
        self._normalizer = _Normalizer(lowercase=vocab.lowercase, strip_accents=vocab.strip_accents)
        self._words = KnownWords(self._encode_word)
        self._longest = max(map(len, vocab.tokens))
        self._unknown = unknown
        self._compiled: WpmTexts | None = None

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: bytes) -> list[int]:
        if worthwhile(len(text), self._compiled):
            if self._compiled is None:
                self._compiled = WpmTexts(self._vocab, normal_forms(self._vocab))
            return self._compiled.encode(unicode.decode(text))
        words = unicode.decode(text).translate(self._normalizer).split(" ")
        return list(chain.from_iterable(map(self._words.__getitem__, filter(None, words))))

    def _encode_word(self, word: str) -> list[int]:
        text, find = SPACE + unicode.encode(word), self._vocab.ids.get
        out: list[int] = []
        at, n = 0, len(text)
        while at < n:
            for end in range(min(n, at + self._longest), at, -1):
                token = find(text[at:end])
                if token is not None:
                    out.append(token)
                    at = end
                    break
            else:
                return [self._unknown]
        return out
