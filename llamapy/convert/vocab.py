"""A folder's vocabulary as GGUF metadata: tokens, scores, types, merges, and what goes with them.

Kinds: sentencepiece models and their JSON forms, byte-level BPE, WordPiece, Unigram. Files and
fields are those that convert_hf_to_gguf.py reads (conversion/base.py, bert.py); nothing is run.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from llamapy.convert import pre, pre_hashes, sentencepiece, special, unigram
from llamapy.convert.checkpoint import Checkpoint
from llamapy.convert.sentencepiece import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from llamapy.core.errors import TokenizerError
from llamapy.core.log import log
from llamapy.gguf import keys
from llamapy.nn.hf import Vocabulary

Values = dict[str, Any]

ADDED_SCORE, PAD_SCORE = -1000.0, -10000.0
SPACE = "\u2581"
_LOOKS_SPECIAL = ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclass
class Tokens:
    """By id: text, score, type. Ids that nothing has are unused."""

    texts: list[bytes] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)

    @classmethod
    def unused(cls, n: int) -> Tokens:
        return cls([_pad(i) for i in range(n)], [PAD_SCORE] * n, [UNUSED] * n)

    @classmethod
    def normal(cls, vocab: Mapping[str, int], n: int) -> Tokens:
        """`n` tokens, of which those in `vocab` (text -> id) are normal ones without a score."""
        known: list[bytes | None] = [None] * n
        for text, i in vocab.items():
            known[i] = text.encode("utf-8", "surrogatepass")
        return cls(
            [_pad(i) if text is None else text for i, text in enumerate(known)],
            [PAD_SCORE if text is None else 0.0 for text in known],
            [UNUSED if text is None else NORMAL for text in known],
        )

    def put(self, i: int, text: str | bytes, score: float, kind: int) -> None:
        self.texts[i] = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.scores[i], self.types[i] = score, kind


def _pad(i: int) -> bytes:
    return b"[PAD%d]" % i


@contextmanager
def _without_collection() -> Iterator[None]:
    """No search for garbage: it goes through all of a vocabulary's small objects again and again,
    and takes longer than reading them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@_without_collection()
def read(
    checkpoint: Checkpoint, policy: Vocabulary, n_vocab: int, forced_pre: str | None = None
) -> Values:
    """{key: value} of the whole vocabulary. TokenizerError if the folder has none that is known.

    n_vocab     rows of the embeddings: the list is filled up to it
    forced_pre  name of the pre-tokenizer, whatever the patterns say
    """
    config = checkpoint.json("tokenizer_config.json")
    found: Values = dict(policy.before(checkpoint.config, config))
    for kind in policy.kinds:
        made = _KINDS[kind](_Folder(checkpoint, config, policy, n_vocab, forced_pre))
        if made is not None:
            found |= made
            break
    else:
        raise _none(checkpoint)
    return found | dict(policy.after(checkpoint.config, config))


@dataclass
class _Folder:
    checkpoint: Checkpoint
    config: Mapping[str, Any]
    policy: Vocabulary
    n_vocab: int
    forced_pre: str | None

    @property
    def where(self) -> str:
        return str(self.checkpoint.folder)

    def tokenizer(self, *kinds: str) -> dict[str, Any] | None:
        """tokenizer.json if its model is one of these kinds."""
        found = self.checkpoint.json("tokenizer.json")
        model = found.get("model")
        kind = model.get("type", "BPE") if isinstance(model, Mapping) else None
        return found if kind in kinds else None


def _none(checkpoint: Checkpoint) -> TokenizerError:
    folder = checkpoint.folder
    kind = (checkpoint.json("tokenizer.json").get("model") or {}).get("type")
    what = f"tokenizer.json has a {kind} model" if kind else "no tokenizer.json, no tokenizer.model"
    return TokenizerError(f"{folder}: no vocabulary that fits: {what}", hint="is a file missing?")


def looks_special(text: str) -> bool:
    """Whether an added token is a control token though it does not say so."""
    pairs = (("<|", "|>"), ("<｜", "｜>"), ("<unused", ">"))
    return text in _LOOKS_SPECIAL or any(text.startswith(a) and text.endswith(b) for a, b in pairs)


def _put_added(tokens: Tokens, i: int, entry: Mapping[str, Any], policy: Vocabulary) -> None:
    """An added token with its type."""
    text = str(entry["content"])
    if not 0 <= i < len(tokens.texts):
        log.warning("added token %r has id %d of %d: left out", text, i, len(tokens.texts))
        return
    if entry.get("special") or (not policy.as_declared and looks_special(text)):
        tokens.put(i, text, ADDED_SCORE, CONTROL)
    else:
        plain = text if policy.as_declared else text.replace(SPACE, " ")
        tokens.put(i, plain, ADDED_SCORE, USER_DEFINED)


def _with_special(folder: _Folder, found: Values, n_vocab: int | None) -> Values:
    return found | special.collect(folder.checkpoint, n_vocab).values()


# -- sentencepiece


def _spm(folder: _Folder) -> Values | None:
    path = folder.checkpoint.folder / "tokenizer.model"
    if not path.is_file():
        return None
    model = sentencepiece.read(path)
    tokens = Tokens.unused(folder.n_vocab)
    if len(model.pieces) > folder.n_vocab:
        log.warning("%s: %d pieces for %d tokens", path, len(model.pieces), folder.n_vocab)
    for i, (text, score, kind) in enumerate(model.pieces[: folder.n_vocab]):
        tokens.put(i, text, score, NORMAL if kind == USER_DEFINED else kind)
    for added, i in folder.checkpoint.json("added_tokens.json").items():
        if isinstance(i, int) and i < folder.n_vocab:
            tokens.put(i, added, ADDED_SCORE, USER_DEFINED)
    declared = folder.config.get("added_tokens_decoder") or {}
    for number, entry in declared.items():
        _put_added(tokens, int(number), entry, folder.policy)
    if folder.policy.as_declared or not declared:
        for entry in folder.checkpoint.json("tokenizer.json").get("added_tokens") or []:
            _put_added(tokens, entry["id"], entry, folder.policy)
    return _with_special(folder, _spm_values(tokens), folder.n_vocab)


def _spm_values(tokens: Tokens) -> Values:
    return {
        keys.TOKENIZER_MODEL: "llama",
        keys.PRE_TOKENIZER: "default",
        keys.TOKENS: tokens.texts,
        keys.SCORES: tokens.scores,
        keys.TOKEN_TYPES: tokens.types,
    }


def _spm_json(folder: _Folder) -> Values | None:
    """A sentencepiece model that is only there as the byte-fallback BPE of a tokenizer.json.

    Its merges stand in the order of the pieces' scores, so the first merge that makes a piece gives
    its score back up to a constant factor.
    """
    tokenizer = folder.tokenizer("BPE")
    if tokenizer is None or not tokenizer["model"].get("byte_fallback"):
        return None
    model = tokenizer["model"]
    tokens = Tokens.unused(_n_tokens(tokenizer, folder.n_vocab, folder.where))
    scores: dict[str, float] = {}
    for rank, merge in enumerate(_pairs(model.get("merges") or [])):
        scores.setdefault("".join(merge), -float(rank))
    least = -float(len(model.get("merges") or []))
    for text, i in model["vocab"].items():
        if text.startswith("<0x") and _BYTE.fullmatch(text):
            tokens.put(i, text, 0.0, BYTE)
        elif text == model.get("unk_token"):
            tokens.put(i, text, 0.0, UNKNOWN)
        else:
            tokens.put(i, text, scores.get(text, least), NORMAL)
    for entry in tokenizer.get("added_tokens") or []:
        if entry["content"] != model.get("unk_token"):
            _put_added(tokens, entry["id"], entry, folder.policy)
    found = _spm_values(tokens)
    if not _prepends_space(tokenizer):
        found["tokenizer.ggml.add_space_prefix"] = False
    return _with_special(folder, found, len(tokens.texts))


def _prepends_space(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a text gets a space in front."""

    def any_of(node: Any) -> bool:
        if not isinstance(node, Mapping):
            return False
        inner = [*node.get("normalizers", []), *node.get("pretokenizers", [])]
        if node.get("type") == "Metaspace":
            never = node.get("prepend_scheme", "always") == "never"
            return not never and bool(node.get("add_prefix_space", True))
        return node.get("type") == "Prepend" or any(map(any_of, inner))

    return any_of(tokenizer.get("normalizer")) or any_of(tokenizer.get("pre_tokenizer"))


# -- byte-pair and WordPiece


def _n_tokens(tokenizer: Mapping[str, Any], n_vocab: int, where: str) -> int:
    """How many tokens the list needs: the embeddings' rows. TokenizerError if ids go beyond."""
    ids = [*tokenizer["model"]["vocab"].values()]
    ids += [entry["id"] for entry in tokenizer.get("added_tokens") or []]
    top = max(ids, default=-1)
    if top >= n_vocab:
        raise TokenizerError(
            f"{where}/tokenizer.json: has id {top}, the embeddings have {n_vocab} rows",
            hint="does this tokenizer belong to this model?",
        )
    return n_vocab


def _listed(tokenizer: Mapping[str, Any], n_vocab: int, folder: _Folder) -> Tokens:
    """Tokens of a vocabulary with all its texts, as AutoTokenizer would list them."""
    n_tokens = _n_tokens(tokenizer, n_vocab, folder.where)
    tokens = Tokens.normal(tokenizer["model"]["vocab"], n_tokens)
    for entry in tokenizer.get("added_tokens") or []:
        _put_added(tokens, entry["id"], entry, folder.policy)
    return tokens


def _bpe(folder: _Folder) -> Values | None:
    tokenizer = folder.tokenizer("BPE") or _old_files(folder)
    if tokenizer is None or tokenizer["model"].get("byte_fallback"):
        return None
    tokens = _listed(tokenizer, folder.n_vocab, folder)
    found: Values = {
        keys.TOKENIZER_MODEL: "gpt2",
        keys.PRE_TOKENIZER: "",
        keys.TOKENS: tokens.texts,
        keys.TOKEN_TYPES: tokens.types,
    }
    found[keys.MERGES] = _spelled(tokenizer["model"].get("merges") or [])
    found = _with_special(folder, found, None)
    found[keys.PRE_TOKENIZER] = _pre(folder, tokenizer, found)
    return found


def _spelled(merges: Sequence[Any]) -> list[str]:
    """Merges as "a b", with spaces in them as bytes are written."""
    return [
        f"{a.replace(' ', 'Ġ')} {b.replace(' ', 'Ġ')}" if " " in a or " " in b else f"{a} {b}"
        for a, b in _pairs(merges)
    ]


def _pairs(merges: Sequence[Any]) -> list[tuple[str, str]]:
    """Merges in either spelling: "a b" or ["a", "b"]."""
    if merges and isinstance(merges[0], str):
        return [(a, b) for a, _, b in (merge.partition(" ") for merge in merges)]
    return [(a, b) for a, b in merges]


def _old_files(folder: _Folder) -> dict[str, Any] | None:
    """What GPT-2's vocab.json and merges.txt say, as a tokenizer.json would."""
    vocab = folder.checkpoint.json("vocab.json")
    merges = folder.checkpoint.text("merges.txt")
    if not vocab or merges is None or folder.checkpoint.json("tokenizer.json"):
        return None
    lines = merges.splitlines()
    lines = lines[1:] if lines[:1] and lines[0].startswith("#") else lines
    added = folder.checkpoint.json("added_tokens.json")
    entries = folder.config.get("added_tokens_decoder") or {}
    declared = [{"id": int(i), **entry} for i, entry in entries.items()]
    declared += [{"id": i, "content": t} for t, i in added.items() if str(i) not in entries]
    return {
        "model": {
            "type": "BPE",
            "vocab": vocab,
            "merges": [x for x in lines if len(x.split()) == 2],
        },
        "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
        "added_tokens": declared,
    }


def _pre(folder: _Folder, tokenizer: Mapping[str, Any], found: Values) -> str:
    if folder.forced_pre is not None:
        return pre.check_name(folder.forced_pre)
    return pre.identify(tokenizer, folder.config, _ids(found), folder.where)


def _ids(found: Values) -> Callable[[str], list[int]]:
    """Ids of the test text with a vocabulary and the pre-tokenizer of a name."""

    def of(name: str) -> list[int]:
        from llamapy.tokenizers import tokenizer

        return tokenizer.load(found | {keys.PRE_TOKENIZER: name}).encode(pre_hashes.TEXT)

    return of


def _wordpiece(folder: _Folder) -> Values | None:
    tokenizer = folder.tokenizer("WordPiece") or _word_list(folder)
    if tokenizer is None:
        return None
    tokens = _listed(tokenizer, folder.n_vocab, folder)
    mark = tokenizer["model"].get("continuing_subword_prefix", "##").encode()
    texts = [
        text
        if kind == CONTROL
        else text.removeprefix(mark)
        if text.startswith(mark)
        else SPACE.encode() + text
        for text, kind in zip(tokens.texts, tokens.types)
    ]
    found: Values = {
        "tokenizer.ggml.token_type_count": folder.checkpoint.config.get("type_vocab_size", 1),
        keys.TOKENIZER_MODEL: "bert",
        keys.PRE_TOKENIZER: "default",
        keys.TOKENS: texts,
        keys.TOKEN_TYPES: tokens.types,
    }
    found = _with_special(folder, found, len(texts))
    # The name is written but not read; it is what the fingerprint says, as upstream's is.
    found[keys.PRE_TOKENIZER] = pre_hashes.name_of(_ids(found)("default")) or "default"
    return found


def _word_list(folder: _Folder) -> dict[str, Any] | None:
    """BERT's vocab.txt, as a tokenizer.json would say it."""
    text = folder.checkpoint.text("vocab.txt")
    if text is None or folder.checkpoint.json("tokenizer.json"):
        return None
    vocab = {word: i for i, word in enumerate(text.splitlines())}
    special_words = [w for w in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if w in vocab]
    added = [{"id": vocab[w], "content": w, "special": True} for w in special_words]
    return {"model": {"type": "WordPiece", "vocab": vocab}, "added_tokens": added}


def _unigram(folder: _Folder) -> Values | None:
    found = unigram.read(folder.checkpoint, folder.tokenizer("Unigram"), folder.n_vocab)
    return None if found is None else _with_special(folder, found, len(found[keys.TOKENS]))


_KINDS: dict[str, Callable[[_Folder], Values | None]] = {
    "spm": _spm,
    "spm_json": _spm_json,
    "bpe": _bpe,
    "wordpiece": _wordpiece,
    "unigram": _unigram,
}
