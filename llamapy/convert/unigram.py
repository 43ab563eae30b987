"""Unigram vocabularies (XLM-RoBERTa's): from tokenizer.json, or from sentencepiece.bpe.model."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from llamapy.convert import sentencepiece
from llamapy.convert.checkpoint import Checkpoint
from llamapy.convert.sentencepiece import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from llamapy.core.errors import TokenizerError
from llamapy.gguf import keys

Values = dict[str, Any]
Entry = tuple[bytes, float, int]

MODEL_FILE = "sentencepiece.bpe.model"


def read(
    checkpoint: Checkpoint, tokenizer: Mapping[str, Any] | None, n_vocab: int
) -> Values | None:
    """{key: value} without special ids; None if there is no such vocabulary."""
    path = checkpoint.folder / MODEL_FILE
    if path.is_file():
        model = sentencepiece.read(path)
        if model.kind != sentencepiece.UNIGRAM:
            raise TokenizerError(f"{path}: is no unigram model")
        pieces = model.pieces + _unused(len(model.pieces), n_vocab)
        # fairseq put four tokens of its own in front
        front = [(b"<s>", CONTROL), (b"<pad>", CONTROL), (b"</s>", CONTROL), (b"<unk>", UNKNOWN)]
        entries = [(text, 0.0, kind) for text, kind in front] + pieces[3:-1]
        prefix, trims = model.add_dummy_prefix, model.remove_extra_whitespaces
        return _values(checkpoint, entries, prefix, trims, model.charsmap)
    if tokenizer is None:
        return None
    entries = _entries(tokenizer)
    entries += _unused(len(entries), n_vocab)
    config = checkpoint.json("tokenizer_config.json")
    trims = bool(config.get("clean_up_tokenization_spaces", False))
    charsmap = b64decode(_charsmap(tokenizer.get("normalizer")))
    return _values(checkpoint, entries, _prefix(tokenizer), trims, charsmap)


def _unused(first: int, n_vocab: int) -> list[Entry]:
    return [(b"[PAD%d]" % i, -10000.0, UNUSED) for i in range(first, n_vocab)]


def _entries(tokenizer: Mapping[str, Any]) -> list[Entry]:
    model = tokenizer["model"]
    added = {entry["id"]: entry for entry in tokenizer.get("added_tokens") or []}
    found: list[Entry] = []
    for i, (text, score) in enumerate(model["vocab"]):
        kind = NORMAL
        if i == model.get("unk_id"):
            kind = UNKNOWN
        elif i in added:
            kind = CONTROL if added[i].get("special") else USER_DEFINED
        found.append((text.encode(), float(score), kind))
    return found


def _prefix(tokenizer: Mapping[str, Any]) -> bool:
    node = tokenizer.get("pre_tokenizer") or {}
    for one in node.get("pretokenizers", [node]):
        if one.get("type") == "Metaspace":
            scheme = one.get("prepend_scheme", "always")
            return bool(one.get("add_prefix_space", True)) and scheme != "never"
    return False


def _charsmap(node: Any) -> str:
    if not isinstance(node, Mapping):
        return ""
    if node.get("precompiled_charsmap"):
        return str(node["precompiled_charsmap"])
    return next((s for n in node.get("normalizers", []) if (s := _charsmap(n))), "")


def _values(
    checkpoint: Checkpoint, entries: list[Entry], prefix: bool, trims: bool, charsmap: bytes
) -> Values:
    found: Values = {
        keys.TOKENIZER_MODEL: "t5",
        keys.PRE_TOKENIZER: "default",
        keys.TOKENS: [text for text, _, _ in entries],
        keys.SCORES: [score for _, score, _ in entries],
        keys.TOKEN_TYPES: [kind for _, _, kind in entries],
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.token_type_count": checkpoint.config.get("type_vocab_size", 1),
        "tokenizer.ggml.remove_extra_whitespaces": trims,
    }
    if charsmap:
        found["tokenizer.ggml.precompiled_charsmap"] = charsmap
    return found
