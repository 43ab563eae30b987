"""PLaMo-2 vocabularies: the cheapest cover of the text by tokens, found from its end to its start.

Scores count in ten-thousandths, rounded; a character that no token covers costs 1000 and becomes
the tokens of its UTF-8 bytes. Of equal costs the longer first token wins.
"""

from __future__ import annotations

import math

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.long_covers import Plamo2Texts
from llamapy.tokenizers.long_texts import worthwhile
from llamapy.tokenizers.vocab import BYTE, Vocab

UNKNOWN = -10_000_000
INVALID = -20_000_000  # a score that is not above this one bars its token


class Plamo2:
    """Encoder of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._compiled: Plamo2Texts | None = None
        self._bytes = _byte_tokens(vocab)
        self._pieces: dict[str, tuple[int, int]] = {}  # text -> (score, id)
        self._longest: dict[str, int] = {}  # characters of the longest piece by its first one
        is_byte = (vocab.attributes & BYTE).astype(bool).tolist()
        for token, (text, score) in enumerate(zip(vocab.tokens, vocab.scores.tolist())):
            if is_byte[token]:
                continue
            piece, units = unicode.decode(text), _round(score)
            if units > INVALID:
                self._pieces[piece] = (units, token)
                self._longest[piece[0]] = max(self._longest.get(piece[0], 0), len(piece))

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text; a byte order mark at its start is left out."""
        decoded = [unicode.decode(text).removeprefix("\ufeff") for text in texts]
        if not worthwhile(sum(map(len, texts)), self._compiled):
            return [self._encode(text) for text in decoded]
        if self._compiled is None:
            self._compiled = Plamo2Texts(self._pieces, self._bytes, UNKNOWN)
        return [self._compiled.encode(text) for text in decoded]

    def _encode(self, text: str) -> list[int]:
        n = len(text)
        cost = [0] * (n + 1)
        steps: list[tuple[int, int]] = [(0, 0)] * n  # length and id of the best token at each place
        find = self._pieces.get
        for at in range(n - 1, -1, -1):
            best, step = 1 << 60, (1, -1)
            for end in range(min(n, at + self._longest.get(text[at], 0)), at, -1):
                piece = find(text[at:end])
                if piece is not None and cost[end] - piece[0] < best:
                    best, step = cost[end] - piece[0], (end - at, piece[1])
            if cost[at + 1] - UNKNOWN < best:
                best, step = cost[at + 1] - UNKNOWN, (1, -1)
            cost[at], steps[at] = best, step
        return self._follow(text, steps)

    def _follow(self, text: str, steps: list[tuple[int, int]]) -> list[int]:
        out: list[int] = []
        at = 0
        while at < len(text):
            length, token = steps[at]
            if token >= 0:
                out.append(token)
            else:
                out += (self._bytes[byte] for byte in unicode.encode(text[at]))
            at += length
        return out


def _round(score: float) -> int:
    """Ten-thousandths, halves away from zero, as C's roundf of a float32 product."""
    if not math.isfinite(score):
        return INVALID
    scaled = score * 1e4
    return int(math.copysign(math.floor(abs(scaled) + 0.5), scaled))


def _byte_tokens(vocab: Vocab) -> list[int]:
    tokens = [vocab.ids.get(b"<0x%02X>" % byte, -1) for byte in range(256)]
    for byte, token in enumerate(tokens):
        if token <= 0 or not vocab.attributes[token] & BYTE:
            raise TokenizerError(f"tokenizer.ggml.tokens has no byte token <0x{byte:02X}>")
    return tokens
