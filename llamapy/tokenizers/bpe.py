"""Byte-pair vocabularies: text -> pieces -> merged symbols -> ids.

Of the types "gpt2", "gemma4", "hybriddna" and "whitespace".
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import chain
from typing import cast

import numpy as np

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.long_splits import long_bounds
from llamapy.tokenizers.long_texts import Words, bpe_words, flat, worthwhile
from llamapy.tokenizers.merge import merge
from llamapy.tokenizers.pieces import SPACE, byte_chars
from llamapy.tokenizers.pretok import Splitter
from llamapy.tokenizers.spm import characters
from llamapy.tokenizers.vocab import DNA_MARK, Vocab
from llamapy.tokenizers.words import KnownWords


class Merger:
    """Turns one piece into ids, in plain Python."""

    def __init__(self, vocab: Vocab, merges: list[bytes]) -> None:
        assert vocab.rules is not None
        self._ids = vocab.ids
        self._rules = vocab.rules
        self._merges = merges
        self._byte_symbols = [c.encode() for c in byte_chars()] if self._rules.byte_encode else []

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        """Keys as in the file: left, space, right. Of equal ones the first counts."""
        n = len(self._merges)
        return dict(zip(reversed(self._merges), range(n - 1, -1, -1)))

    def encode(self, piece: str) -> list[int]:
        """Ids of one piece."""
        rules, word = self._rules, unicode.encode(piece)
        if rules.byte_encode:
            symbols = [self._byte_symbols[byte] for byte in word]
            word = b"".join(symbols)
        else:
            symbols = characters(word)
        if rules.ignore_merges or (rules.whole_newlines and not word.strip(b"\n")):
            token = self._ids.get(word)
            if token is not None:
                return [token]
        out: list[int] = []
        for symbol in merge(symbols, self._rank):
            token = self._ids.get(symbol)
            out += self._byte_tokens(symbol) if token is None else (token,)
        return out

    def _rank(self, left: bytes, right: bytes) -> int | None:
        return self._ranks.get(left + b" " + right)

    def _byte_tokens(self, symbol: bytes) -> list[int]:
        """Tokens of the bytes of a symbol that is no token; bytes without one vanish."""
        form = b"%c" if self._rules.byte_encode else b"<0x%02X>"
        tokens = (self._ids.get(form % byte) for byte in symbol)
        return [token for token in tokens if token is not None]


class Bpe:
    """Encoder of one vocabulary. merges: "left right" in order of rank, as in the file."""

    def __init__(self, vocab: Vocab, merges: list[bytes] | None) -> None:
        assert vocab.rules is not None
        if merges is None and vocab.rules.needs_merges:
            raise TokenizerError("tokenizer.ggml.merges is missing")
        self._vocab = vocab
        self._rules = vocab.rules
        self._merges = merges or []
        self._splitter = Splitter(vocab.rules)
        self._compiled: Words | None = None
        self._words = KnownWords(Merger(vocab, self._merges).encode)

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text."""
        return [self._encode(text) for text in texts]

    def _encode(self, text: bytes) -> list[int]:
        if self._rules.escape_spaces:
            text = text.replace(b" ", SPACE)
        if self._vocab.model == "hybriddna":
            return self._encode_dna(text)
        if self._vocab.model == "whitespace":
            return self._encode_without_spaces(text)
        return self._encode_text(unicode.decode(text))

    def _encode_text(self, text: str) -> list[int]:
        if worthwhile(len(text), self._compiled):
            return self._encode_long(text)
        pieces = self._splitter.split(text)
        return list(chain.from_iterable(map(self._words.__getitem__, pieces)))

    def _encode_long(self, text: str) -> list[int]:
        if self._compiled is None:
            self._compiled = bpe_words(self._vocab, self._merges)
        if self._rules.word_starts:
            data, bounds = flat([unicode.encode(piece) for piece in self._splitter.split(text)])
        else:
            data = np.frombuffer(unicode.encode(text) + b"\0", np.uint8)[:-1]
            bounds = unicode.byte_offsets(text, long_bounds(self._rules, text))
        ids, _ = self._compiled.encode(data, bounds)
        return cast(list[int], ids.tolist())

    def _encode_without_spaces(self, text: bytes) -> list[int]:
        """White space only separates; it has no tokens."""
        chars = unicode.decode(text)
        if self._vocab.lowercase:
            chars = chars.translate(unicode.lower_table())
        white = "".join(map(chr, unicode.white_space()))
        segments = re.split(f"[{re.escape(white)}]+", chars)
        return list(chain.from_iterable(map(self._encode_text, filter(None, segments))))

    def _encode_dna(self, text: bytes) -> list[int]:
        """Bodies of <dna>...</dna> become words of six bases, the rest is plain text."""
        ids = self._vocab.ids
        if not all(tag in ids for tag in (b"<dna>", b"</dna>", b"<oov>")):
            return self._encode_text(unicode.decode(text))
        out: list[int] = []
        while text:
            plain, opened, rest = text.partition(b"<dna>")
            if plain:
                out += self._encode_text(unicode.decode(plain))
            if not opened:
                break
            body, closed, text = rest.partition(b"</dna>")
            out.append(ids[b"<dna>"])
            out += self._dna_words(body.upper())
            if closed:
                out.append(ids[b"</dna>"])
        return out

    def _dna_words(self, bases: bytes) -> list[int]:
        words = (bases[i : i + 6].ljust(6, b"A") for i in range(0, len(bases), 6))
        ids = self._vocab.ids
        return [ids.get(word + DNA_MARK, ids[b"<oov>"]) for word in words]
