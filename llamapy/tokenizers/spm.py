"""SentencePiece byte-pair vocabularies ("llama"): join neighbours that form a token, best first.

The caller has put the space prefix; here spaces become U+2581 and text becomes ids.
"""

from __future__ import annotations

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers.long_texts import Words, spm_words, worthwhile
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
        self._compiled: Words | None = None

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text. TokenizerError if a byte has no token."""
        texts = [text.replace(b" ", SPACE) for text in texts]
        if not worthwhile(sum(map(len, texts)), self._compiled):
            return [self._encode(text) for text in texts]
        if self._compiled is None:
            self._compiled = spm_words(self._vocab, self._find_byte)
        encoded = self._compiled.encode_texts(texts)
        missing = self._vocab.n_vocab  # in place of a byte without a token
        return [self._encode(t) if missing in ids else ids for t, ids in zip(texts, encoded)]

    def _encode(self, text: bytes) -> list[int]:
        ids = self._vocab.ids
        out: list[int] = []
        for symbol in merge(characters(text), self._rank):
            token = ids.get(symbol)
            if token is None:
                out += map(self._byte_token, symbol)
            else:
                out.append(token)
        return out

    def _rank(self, left: bytes, right: bytes) -> float | None:
        token = self._vocab.ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _find_byte(self, byte: int) -> int | None:
        """The token of a byte that no other token covers, None if there is none."""
        ids = self._vocab.ids
        for text in (b"<0x%02X>" % byte, b"%c" % byte):
            if text in ids:
                return ids[text]
        return self._vocab.special["unk"]

    def _byte_token(self, byte: int) -> int:
        token = self._find_byte(byte)
        if token is None:
            raise TokenizerError(
                f"the vocabulary has no token for byte 0x{byte:02X} and no unknown token"
            )
        return token
