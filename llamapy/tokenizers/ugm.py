"""Unigram vocabularies (type "t5"): normalize, then the most probable cover of the text by tokens.

Where llama.cpp differs from SentencePiece it is followed: any prefix of a user-defined token passes
the normalizer unchanged, even a single byte of a character.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.charsmap import Charsmap
from llamapy.tokenizers.long_covers import UgmTexts
from llamapy.tokenizers.long_texts import worthwhile
from llamapy.tokenizers.pieces import SPACE
from llamapy.tokenizers.spm import CHARACTER_LENGTHS
from llamapy.tokenizers.vocab import NORMAL, UNUSED, USER_DEFINED, Vocab

UNKNOWN_PENALTY = np.float32(10)


class Ugm:
    """Encoder of one vocabulary."""

    def __init__(self, vocab: Vocab, charsmap: Charsmap) -> None:
        unknown = vocab.special["unk"]
        if unknown is None:
            raise TokenizerError("tokenizer.ggml.unknown_token_id is missing")
        self._vocab = vocab
        self._charsmap = charsmap
        self._unknown = unknown
        attributes = vocab.attributes
        scores = np.where(attributes & USER_DEFINED, 0, vocab.scores)
        normal = vocab.scores[(attributes & NORMAL) != 0]
        least = normal.min() if len(normal) else np.finfo(np.float32).max
        self._unknown_score = float(np.float32(least) - UNKNOWN_PENALTY)
        used = (attributes & (NORMAL | USER_DEFINED | UNUSED)) != 0
        self._scores = {
            text: (token, score)
            for token, (text, score, use) in enumerate(zip(vocab.tokens, scores.tolist(), used))
            if use
        }
        self._compiled: UgmTexts | None = None
        self._longest = [0] * 256  # length of the longest token by its first byte
        for text in self._scores:
            self._longest[text[0]] = max(self._longest[text[0]], len(text))
        self._kept = _prefixes(
            vocab.tokens[token] for token in (attributes & USER_DEFINED).nonzero()[0].tolist()
        )

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text."""
        if worthwhile(sum(map(len, texts)), self._compiled):
            if self._compiled is None:
                self._compiled = self._compile()
            found = [self._compiled.encode(text) for text in texts]
            if None not in found:
                return cast(list[list[int]], found)
        return [self._encode(self.normalize(text)) for text in texts]

    def _compile(self) -> UgmTexts:
        return UgmTexts(
            self._scores,
            self._kept,
            (self._charsmap.nodes, self._charsmap.texts),
            (self._unknown, self._unknown_score),
            prefix=self._vocab.add_space_prefix,
            merge=self._vocab.remove_extra_whitespaces,
        )

    def normalize(self, text: bytes) -> bytes:
        """`text` after the model's normalizer and its rules for spaces."""
        merge_spaces = self._vocab.remove_extra_whitespaces
        prefix = self._vocab.add_space_prefix
        out = bytearray()
        in_word, at = False, 0
        while at < len(text):
            part, n_bytes = self._normalize_prefix(text, at)
            at += n_bytes
            for byte in part:
                if byte == 0x20:
                    in_word = False
                    if not merge_spaces:
                        out += SPACE
                    continue
                if not in_word:
                    in_word = True
                    if prefix or merge_spaces:
                        out += SPACE
                        prefix = False
                out.append(byte)
        return bytes(out)

    def _normalize_prefix(self, text: bytes, at: int) -> tuple[bytes, int]:
        """The normal form of what starts at `at`, and how many bytes that was."""
        length = 0
        while length < len(text) - at and text[at : at + length + 1] in self._kept:
            length += 1
        if length:
            return text[at : at + length], length
        length, replacement = self._charsmap.longest(text, at)
        if length:
            return replacement, length
        length = unicode.sequence_length(text, at)
        return (text[at : at + length], length) if length else ("\ufffd".encode(), 1)

    def _encode(self, text: bytes) -> list[int]:
        n = len(text)
        best = [(-np.finfo(np.float64).max.item(), 0, self._unknown)] * (n + 1)
        best[0] = (0.0, 0, self._unknown)
        find, longest, at = self._scores.get, self._longest, 0
        while at < n:
            step = min(CHARACTER_LENGTHS[text[at] >> 4], n - at)
            here, whole = best[at][0], False
            for end in range(at + 1, min(n, at + longest[text[at]]) + 1):
                token = find(text[at:end])
                if token is not None:
                    whole |= end == at + step
                    if here + token[1] > best[end][0]:
                        best[end] = (here + token[1], at, token[0])
            if not whole and here + self._unknown_score > best[at + step][0]:
                best[at + step] = (here + self._unknown_score, at, self._unknown)
            at += step
        return self._back(best, n)

    def _back(self, best: list[tuple[float, int, int]], end: int) -> list[int]:
        """Follow the best cover from its end; a run of unknown tokens is one."""
        out: list[int] = []
        while end:
            _, end, token = best[end]
            if not (out and token == self._unknown == out[-1]):
                out.append(token)
        return out[::-1]


def _prefixes(texts: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(text[: i + 1] for text in texts for i in range(len(text)))
