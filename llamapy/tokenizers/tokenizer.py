"""A model's tokenizer: text to ids and back, special tokens, and text from a stream of ids.

    tokenizer = load(gguf_file.metadata)
    ids = tokenizer.encode("Hello world")
    assert tokenizer.decode(ids, remove_special=True) == b"Hello world"

Ids and bytes equal llama.cpp's (llama_tokenize, llama_detokenize) for the same file.
"""

from __future__ import annotations

import codecs
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from llamapy.core.errors import TokenizerError
from llamapy.core.log import log
from llamapy.tokenizers import special, unicode
from llamapy.tokenizers.pieces import clean_spaces, piece_of
from llamapy.tokenizers.vocab import CONTROL, UNKNOWN, Vocab, numbers, read_vocab, strings


class Encoder(Protocol):
    """What a kind of vocabulary has to provide."""

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """Ids of each of several texts without special tokens."""


class NoVocab:
    """Stands in for the encoder of a model without a vocabulary."""

    def encode(self, texts: list[bytes]) -> list[list[int]]:
        """TokenizerError if there is any text."""
        if texts:
            raise TokenizerError("this model has no vocabulary: it takes token ids, not text")
        return []


def load(metadata: Mapping[str, Any], pre: str | None = None) -> Tokenizer:
    """The tokenizer in a model's metadata (GGUF keys to values). TokenizerError if unusable.

    pre: name of a pre-tokenizer, instead of the file's tokenizer.ggml.pre.
    """
    vocab = read_vocab(metadata, pre)
    ends = special.classify(vocab, metadata)
    return Tokenizer(vocab, _encoder(vocab, metadata), ends, _templates(metadata))


def _encoder(vocab: Vocab, metadata: Mapping[str, Any]) -> Encoder:
    if vocab.algorithm == "spm":
        from llamapy.tokenizers.spm import Spm

        return Spm(vocab)
    if vocab.algorithm == "bpe":
        from llamapy.tokenizers.bpe import Bpe

        key = "tokenizer.ggml.merges"
        return Bpe(vocab, strings(metadata, key) if key in metadata else None)
    if vocab.algorithm == "ugm":
        from llamapy.tokenizers.charsmap import KEY, Charsmap
        from llamapy.tokenizers.ugm import Ugm

        data = numbers(metadata, KEY, ("uint8", "int8"))
        return Ugm(vocab, Charsmap(b"" if data is None else data.tobytes()))
    if vocab.algorithm == "none":
        return NoVocab()
    return _simple_encoder(vocab)


def _simple_encoder(vocab: Vocab) -> Encoder:
    if vocab.algorithm == "wpm":
        from llamapy.tokenizers.wpm import Wpm

        return Wpm(vocab)
    if vocab.algorithm == "rwkv":
        from llamapy.tokenizers.rwkv import Rwkv

        return Rwkv(vocab)
    from llamapy.tokenizers.plamo2 import Plamo2

    return Plamo2(vocab)


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    return {
        key[len(prefix) + 1 :]: value
        for key in metadata
        if key == prefix or key.startswith(prefix + ".")
        if isinstance(value := metadata.get(key), str)
    }


class Tokenizer:
    """Text <-> token ids of one model. Make it with `load`; it may be shared between threads."""

    def __init__(
        self, vocab: Vocab, encoder: Encoder, ends: frozenset[int], templates: dict[str, str]
    ) -> None:
        self.vocab = vocab
        self.n_vocab = vocab.n_vocab
        self.eog_ids = ends
        self.suppress_ids = vocab.suppress
        self.add_bos, self.add_eos, self.add_sep = vocab.add_bos, vocab.add_eos, vocab.add_sep
        self._encoder = encoder
        self._partition = special.Partition(vocab)
        self._templates = templates
        self._pieces: dict[int, bytes] = {}

    def __getattr__(self, name: str) -> int | None:
        """Ids of special tokens by name (`bos`, ... of vocab.SPECIAL_KEYS), None if absent."""
        if name != "vocab" and name in self.vocab.special:
            return self.vocab.special[name]
        raise AttributeError(name)

    def encode(
        self, text: str | bytes, *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        """Ids of `text`. Bytes need not be valid UTF-8.

        add_special: put the special tokens that the model wants at the ends (BOS, EOS, CLS, SEP).
        parse_special: texts of control tokens become those tokens; off for text from a user.
        """
        return self.encode_spans([(text, parse_special)], add_special=add_special)

    def encode_spans(
        self, spans: Iterable[tuple[str | bytes, bool]], *, add_special: bool = True
    ) -> list[int]:
        """Ids of a text in parts, each with its own parse_special (a chat prompt: the template's,
        the user's). Special tokens do not reach over a border; plain text is encoded as if there
        were none."""
        fragments: list[special.Fragment] = []
        for text, parse_special in spans:
            data = unicode.encode(text) if isinstance(text, str) else text
            for part in self._partition.split(data, parse_special):
                before = fragments[-1] if fragments else 0
                if isinstance(part, bytes) and isinstance(before, bytes):
                    fragments[-1] = before + part
                else:
                    fragments.append(part)
        head, tail = self._ends(add_special)
        if self.vocab.add_space_prefix and self.vocab.algorithm == "spm":
            fragments = _prefix_spaces(fragments)
        encoded = iter(self._encoder.encode([f for f in fragments if isinstance(f, bytes)]))
        ids = head
        for fragment in fragments:
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += next(encoded)
        ids += tail
        self._warn_of_doubles(ids, head=bool(add_special and self.add_bos), tail=bool(tail))
        return ids

    def _ends(self, add_special: bool) -> tuple[list[int], list[int]]:
        """Ids to put before and after a text."""
        if not add_special or self.vocab.algorithm in ("rwkv", "none"):
            return [], []
        if self.vocab.algorithm == "wpm":
            names = "bos", "sep"  # whatever add_bos says, as in llama.cpp
        else:
            names = "bos" if self.add_bos else "", "eos" if self.add_eos else ""
        head, tail = ([self._needed(name)] if name else [] for name in names)
        return head, tail

    def _needed(self, name: str) -> int:
        token = self.vocab.special[name]
        if token is None:
            raise TokenizerError(
                f"the model wants a {name.upper()} token, but its vocabulary has none",
                hint=f"tokenizer.ggml.add_{name}_token should be false",
            )
        return token

    def _warn_of_doubles(self, ids: list[int], *, head: bool, tail: bool) -> None:
        if head and len(ids) >= 2 and ids[0] == ids[1] == self.bos:
            log.warning("the text starts with a BOS token of its own, and the model adds another")
        if tail and len(ids) >= 2 and ids[-1] == ids[-2] == self.eos:
            log.warning("the text ends with an EOS token of its own, and the model adds another")

    def decode(
        self, ids: Iterable[int], *, remove_special: bool = False, special: bool = True
    ) -> bytes:
        """Bytes of a whole text, cleaned up as the model wants. TokenizerError for an unknown id.

        remove_special: leave out the BOS and EOS that `encode` adds. special: print control tokens.
        """
        ids = list(map(operator.index, ids))
        strip = self.vocab.add_space_prefix
        if remove_special and self.add_bos and ids and ids[0] == self.bos:
            ids, strip = ids[1:], False
        if remove_special and self.add_eos and ids and ids[-1] == self.eos:
            ids = ids[:-1]
        pieces = [self.piece(token, special=special) for token in ids]
        if strip and pieces and pieces[0].startswith(b" "):
            pieces[0] = pieces[0][1:]
        text = b"".join(pieces)
        return clean_spaces(text) if self.vocab.clean_spaces else text

    def piece(self, token: int, *, special: bool = True) -> bytes:
        """Bytes of one token; empty for control tokens unless `special`."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = piece_of(self.vocab, self._checked(token))
        if not special and self.vocab.attributes[token] & (CONTROL | UNKNOWN):
            return b""
        return known

    def token_text(self, token: int) -> str:
        """The text of a token as the file has it; wrong UTF-8 as U+FFFD."""
        return self.vocab.tokens[self._checked(token)].decode("utf-8", "replace")

    def token_id(self, text: str | bytes) -> int | None:
        """The id of the token with this text, None if there is none."""
        return self.vocab.ids.get(unicode.encode(text) if isinstance(text, str) else text)

    def attr(self, token: int) -> int:
        """Attribute bits of a token, as in `vocab`."""
        return int(self.vocab.attributes[self._checked(token)])

    def is_eog(self, token: int) -> bool:
        """True if the token ends a generation."""
        return token in self.eog_ids

    def chat_template(self, name: str | None = None) -> str | None:
        """The model's chat template (Jinja source), or the one called `name`; None without one."""
        return self._templates.get(name or "")

    def _checked(self, token: int) -> int:
        if not 0 <= token < self.n_vocab:
            raise TokenizerError(f"token {token} is not in the vocabulary of {self.n_vocab} tokens")
        return token


def _prefix_spaces(fragments: list[special.Fragment]) -> list[special.Fragment]:
    """A space before the first text and before each text that follows a special token."""
    after_special, out = True, list[special.Fragment]()
    for fragment in fragments:
        if isinstance(fragment, bytes) and after_special:
            fragment = b" " + fragment
        after_special = isinstance(fragment, int)
        out.append(fragment)
    return out


class StreamDecoder:
    """Text from ids that come one by one: emitted as soon as its code points are complete."""

    def __init__(self, tokenizer: Tokenizer, *, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Text that is complete with this token; wrong bytes give U+FFFD."""
        return self._decoder.decode(self._tokenizer.piece(token, special=self._special))

    def flush(self) -> str:
        """The rest at the end: U+FFFD once if a code point is incomplete. Starts anew after it."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
