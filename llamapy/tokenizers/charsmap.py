"""The normalizer that SentencePiece compiles into unigram models (precompiled_charsmap).

A 32-bit size, then that many bytes of an XOR-compressed compact double array (a trie: Kanda 2018),
then replacement texts, each ended by a zero byte. A node holds its base in bits 10-30 (shifted by 8
more if bit 9 is set), the byte that led to it in bits 0-7 and whether it is a leaf in bit 8; a
leaf's child holds the place of the replacement.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import TokenizerError

KEY = "tokenizer.ggml.precompiled_charsmap"


class Charsmap:
    """Replacements of text prefixes; `nodes` and `texts` are its two parts."""

    def __init__(self, data: bytes) -> None:
        if not data:
            self.nodes: NDArray[np.uint32] = np.zeros(0, np.uint32)
            self.texts = b""
            return
        n_bytes = int.from_bytes(data[:4], "little")
        if len(data) < 4 or n_bytes + 4 >= len(data):
            raise TokenizerError(
                f"{KEY} has {len(data)} bytes, its trie alone should have {n_bytes}"
            )
        nodes = np.frombuffer(data, "<u4", n_bytes // 4, 4)
        self.nodes = nodes.astype(np.uint32) if sys.byteorder == "big" else nodes
        self.texts = data[4 + n_bytes :]
        self._walkable: list[int] = self.nodes.tolist()

    def longest(self, text: bytes, start: int) -> tuple[int, bytes]:
        """Length of the longest prefix of text[start:] that is replaced (or 0), and by what."""
        if not len(self.nodes):
            return 0, b""
        nodes, length, place = self._walkable, 0, 0
        try:
            node = _base(nodes[0])
            for at in range(start, len(text)):
                byte = text[at]
                node ^= byte
                if byte == 0 or nodes[node] & 0x800000FF != byte:
                    break
                leaf = nodes[node] >> 8 & 1
                node ^= _base(nodes[node])
                if leaf:
                    length, place = at - start + 1, nodes[node] & 0x7FFFFFFF
        except IndexError:
            raise TokenizerError(f"{KEY}: a node outside its {len(nodes)} nodes") from None
        return length, self._text(place) if length else b""

    def _text(self, place: int) -> bytes:
        end = self.texts.find(b"\0", place) if place < len(self.texts) else -1
        if end < 0:
            raise TokenizerError(
                f"{KEY}: replacement at {place} of {len(self.texts)} bytes is not ended"
            )
        return self.texts[place:end]


def _base(node: int) -> int:
    return node >> 10 << ((node & 1 << 9) >> 6)
