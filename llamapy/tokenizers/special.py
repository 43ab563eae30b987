"""Special tokens: which tokens are special and what they do, and cutting them out of a text.

llama.cpp finds many of them by their text, because files seldom say; the lists here are its lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from llamapy.tokenizers.vocab import (
    CONTROL,
    LSTRIP,
    NORMAL,
    RSTRIP,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocab,
)

Fragment = bytes | int  # raw text, or the id of a special token

# texts that stand for a special token when no key gives its id; the first that is found counts
BY_TEXT = {
    "eot": (
        "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> "
        "[EOT] <｜end▁of▁sentence｜> <end_of_utterance>"
    ),
    "eom": "<|eom_id|>",
    "fim_pre": (
        "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> "
        "<|prefix|>"
    ),
    "fim_suf": (
        "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> "
        "<|suffix|>"
    ),
    "fim_mid": (
        "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> "
        "<|middle|>"
    ),
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
END_TEXTS = (
    "<|eot_id|> <|im_end|> <|end|> <|return|> <|call|> <|flush|> <|calls|> <end_of_turn> "
    "<|endoftext|> </s> <|eom_id|> <EOT> _<EOT> [EOT] [EOS] <|end_of_text|> <end_of_utterance> "
    "<eos> <turn|> <|tool_response> <｜end▁of▁sentence｜> [e~["
)
SHOWN_TEXTS = "<|channel|> <|message|> <|start|> <|constrain|>"

C_SPACE = b" \t\n\v\f\r"


def classify(vocab: Vocab, metadata: Mapping[str, Any]) -> frozenset[int]:
    """Complete `vocab`'s special ids and attributes; the ids that end a generation."""
    attributes, special = vocab.attributes, vocab.special
    for name, texts in BY_TEXT.items():
        if special[name] is None:
            token = next(iter(_present(vocab, texts)), None)
            special[name] = token
            if token is not None:
                attributes[token] |= CONTROL
    for token in _with_attribute(vocab, CONTROL):
        if b"unused" in vocab.tokens[token]:
            attributes[token] |= UNUSED
    ends = {special[name] for name in ("fim_pad", "fim_rep", "fim_sep")}
    for token in _present(vocab, END_TEXTS):
        ends.add(token)
        attributes[token] |= CONTROL
    for token in _present(vocab, SHOWN_TEXTS):
        attributes[token] = USER_DEFINED
    ends |= {special[name] for name in ("eos", "eot", "eom")}
    found = {token for token in ends if token is not None}
    _drop_false_ends(vocab, found)
    _mark_strips(vocab, metadata)
    return frozenset(found)


def _present(vocab: Vocab, texts: str) -> list[int]:
    found = (vocab.ids.get(text.encode()) for text in texts.split(" "))
    return [token for token in found if token is not None]


def _with_attribute(vocab: Vocab, attribute: int) -> list[int]:
    ids: list[int] = (vocab.attributes & attribute).nonzero()[0].tolist()
    return ids


def _drop_false_ends(vocab: Vocab, ends: set[int]) -> None:
    """Some vocabularies have an end token's text without its meaning."""
    by_text = {vocab.tokens[token]: token for token in ends}
    calls = b"<|call|>" in by_text or b"<|calls|>" in by_text
    if b"<|end|>" in by_text and calls and (b"<|return|>" in by_text or b"<|flush|>" in by_text):
        ends.discard(by_text[b"<|end|>"])
        vocab.attributes[by_text[b"<|end|>"]] = USER_DEFINED
    if b"</s>" in by_text and (b"<|tool_response>" in by_text or b"<|plamo:eos|>" in by_text):
        ends.discard(by_text[b"</s>"])
        vocab.attributes[by_text[b"</s>"]] = NORMAL


def _mark_strips(vocab: Vocab, metadata: Mapping[str, Any]) -> None:
    """Set which special tokens swallow white space beside them; llama.cpp guesses it from names."""
    pre = str(metadata.get("tokenizer.ggml.pre", ""))
    architecture = str(metadata.get("general.architecture", ""))
    name = str(metadata.get("general.name", "")).lower()
    if any(n in pre for n in ("jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert")) or any(
        n in architecture for n in ("nomic-bert-moe", "jina-bert-v3")
    ):
        for token in _present(vocab, "<mask>"):
            vocab.attributes[token] |= LSTRIP
    elif "phi-3" in name or "phi3" in name:
        for token in special_tokens(vocab) + _present(vocab, "</s>"):
            vocab.attributes[token] |= RSTRIP
        for token in _present(vocab, "<unk> <s> <|endoftext|>"):
            vocab.attributes[token] &= ~RSTRIP
    elif "modern-bert" in name:
        for token in _present(vocab, "[MASK]"):
            vocab.attributes[token] |= LSTRIP


def special_tokens(vocab: Vocab) -> list[int]:
    """Ids that are cut out of texts, longest text first."""
    found = _with_attribute(vocab, CONTROL | USER_DEFINED | UNKNOWN)
    return sorted(found, key=lambda token: -len(vocab.tokens[token]))


class Partition:
    """Cuts special tokens out of texts."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        every = special_tokens(vocab)
        hidden = CONTROL | UNKNOWN
        self._tokens = {
            True: every,
            False: [t for t in every if not vocab.attributes[t] & hidden],
        }
        self._order = {token: i for i, token in enumerate(every)}
        self._trees = {parse: _Prefixes(self._texts(parse)) for parse in (True, False)}

    def _texts(self, parse_special: bool) -> dict[bytes, int]:
        return {self._vocab.tokens[token]: token for token in self._tokens[parse_special]}

    def split(self, text: bytes, parse_special: bool) -> list[Fragment]:
        """Raw texts and ids. Without `parse_special` only user-defined tokens are found.

        As in llama.cpp: the longest special token takes all its places first, then the next one.
        """
        if not text:
            return []
        present = self._trees[parse_special].present(text)
        fragments: list[Fragment] = [text]
        for token in sorted(present, key=self._order.__getitem__):
            fragments = list(self._cut(fragments, token))
        return fragments

    def _cut(self, fragments: Iterable[Fragment], token: int) -> Iterable[Fragment]:
        mark, attributes = self._vocab.tokens[token], int(self._vocab.attributes[token])
        for fragment in fragments:
            if isinstance(fragment, int) or mark not in fragment:
                yield fragment
            elif attributes & (LSTRIP | RSTRIP):
                yield from _cut_and_strip(fragment, mark, token, attributes)
            else:
                for i, part in enumerate(fragment.split(mark)):
                    if i:
                        yield token
                    if part:
                        yield part


def _cut_and_strip(text: bytes, mark: bytes, token: int, attributes: int) -> Iterable[Fragment]:
    at = text.find(mark)
    while at >= 0:
        left, text = text[:at], text[at + len(mark) :]
        if attributes & LSTRIP:
            left = left.rstrip(C_SPACE)
        if attributes & RSTRIP:
            text = text.lstrip(C_SPACE)
        if left:
            yield left
        yield token
        at = text.find(mark)
    if text:
        yield text


class _Prefixes:
    """A tree of shared prefixes, to see quickly which of thousands of texts a long one contains."""

    STEPS = (1, 2, 4, 8, 16)

    def __init__(self, texts: dict[bytes, int], depth: int = 0) -> None:
        self._texts = texts
        self._groups: dict[bytes, _Prefixes] | None = None
        self._depth = depth

    def present(self, text: bytes) -> list[int]:
        """Ids of the texts that occur in `text`."""
        if len(self._texts) <= 2 or self._depth >= len(self.STEPS):
            return [token for mark, token in self._texts.items() if mark in text]
        if self._groups is None:
            self._groups = self._grouped()
        found: list[int] = []
        for prefix, group in self._groups.items():
            if prefix in text:
                found += group.present(text)
        return found

    def _grouped(self) -> dict[bytes, _Prefixes]:
        n_bytes = self.STEPS[self._depth]
        groups: dict[bytes, dict[bytes, int]] = {}
        for mark, token in self._texts.items():
            groups.setdefault(mark[:n_bytes], {})[mark] = token
        return {prefix: _Prefixes(group, self._depth + 1) for prefix, group in groups.items()}
