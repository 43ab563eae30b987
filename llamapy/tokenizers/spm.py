"""SentencePiece byte-pair vocabularies ("llama"): join neighbours that form a token, best first.

The caller has put the space prefix; here spaces become U+2581 and text becomes ids.
"""

from __future__ import annotations

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers.merge import merge
from llamapy.tokenizers.pieces import SPACE
from llamapy.tokenizers.vocab import Vocab

# length of a character by the high half of its first byte; wrong bytes count as one
CHARACTER_LENGTHS = (1,) * 12 + (2, 2, 3, 4)


def characters(text: bytes) -> list[bytes]:
    """UTF-8 characters of `text`, going by first bytes alone; the last may be short."""
    if text.isascii():
        return [text[i : i + 1] for i in range(len(text))]
    out, at = [], 0
    while at < len(text):
        end = at + CHARACTER_LENGTHS[text[at] >> 4]
        out.append(text[at:end])
        at = end
    return out


class Spm:
    """Encoder of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._scores = vocab.scores.tolist()

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text. TokenizerError if a byte has no token."""
        return [self._encode(text.replace(b" ", SPACE)) for text in texts]

    def _encode(self, text: bytes) -> list[int]:
        ids = self._vocab.ids
        out: list[int] = []
        for symbol in merge(characters(text), self._rank):
            token = ids.get(symbol)
            if token is None:
                out += map(self.byte_token, symbol)
            else:
                out.append(token)
        return out

    def _rank(self, left: bytes, right: bytes) -> float | None:
        token = self._vocab.ids.get(left + right)
        return None if token is None else -self._scores[token]

    def byte_token(self, byte: int) -> int:
        """The token of a byte that no other token covers."""
        ids = self._vocab.ids
        for text in (b"<0x%02X>" % byte, bytes([byte])):
            if text in ids:
                return ids[text]
        unknown = self._vocab.special["unk"]
        if unknown is None:
            raise TokenizerError(
                f"the vocabulary has no token for byte 0x{byte:02X} and no unknown token"
            )
        return unknown
