"""RWKV "world" vocabularies: the longest token that starts here, again and again."""

from __future__ import annotations

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers.long_covers import GreedyTexts
from llamapy.tokenizers.long_texts import worthwhile
from llamapy.tokenizers.pieces import unescape_rwkv
from llamapy.tokenizers.vocab import Vocab


class Rwkv:
    """Encoder of one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        self._unknown = vocab.special["unk"]
        self._ids = {unescape_rwkv(text): token for token, text in enumerate(vocab.tokens)}
        self._compiled: GreedyTexts | None = None
        self._longest = [0] * 256  # length of the longest token by its first byte
        for text in self._ids:
            if text:
                self._longest[text[0]] = max(self._longest[text[0]], len(text))

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each text. TokenizerError if a byte has no token and there is no unknown token."""
        if not worthwhile(sum(map(len, texts)), self._compiled):
            return [self._encode(text) for text in texts]
        if self._compiled is None:
            self._compiled = GreedyTexts(list(self._ids), list(self._ids.values()))
        found = map(self._compiled.encode, texts)
        return [self._encode(t) if -1 in ids else ids for t, ids in zip(texts, found)]

    def _encode(self, text: bytes) -> list[int]:
        find, longest, out, at = self._ids.get, self._longest, [], 0
        while at < len(text):
            for end in range(min(len(text), at + longest[text[at]]), at, -1):
                token = find(text[at:end])
                if token is not None:
                    out.append(token)
                    at = end
                    break
            else:
                out.append(self._unk(text[at]))
                at += 1
        return out

    def _unk(self, byte: int) -> int:
        if self._unknown is None:
            raise TokenizerError(f"the vocabulary has no token for byte 0x{byte:02X}")
        return self._unknown
