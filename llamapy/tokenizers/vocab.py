"""The vocabulary in a model's metadata: tokens, scores, attributes, special ids, flags, checked.

Compiled code indexes these arrays unchecked, so lengths, types, duplicates and ids are checked here
and nowhere else. Defaults and meanings of keys are those of llama.cpp's vocabulary loader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import LlamapyError, TokenizerError
from llamapy.core.log import log
from llamapy.tokenizers import pretok
from llamapy.tokenizers.pretok_rules import PreTokenizer

# token attributes, numbered as in llama.cpp
UNKNOWN, UNUSED, NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 2, 4, 8, 16, 32
LSTRIP, RSTRIP = 128, 256

# attribute of each value of tokenizer.ggml.token_type
TYPE_ATTRIBUTES = (0, NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE)

# name of a special token -> key that holds its id (the second of two wins, as in llama.cpp)
SPECIAL_KEYS = {
    "bos": ("bos_token_id",),
    "eos": ("eos_token_id",),
    "eot": ("eot_token_id",),
    "eom": ("eom_token_id",),
    "unk": ("unknown_token_id",),
    "sep": ("seperator_token_id",),
    "pad": ("padding_token_id",),
    "mask": ("mask_token_id",),
    "fim_pre": ("fim_pre_token_id", "prefix_token_id"),
    "fim_suf": ("fim_suf_token_id", "suffix_token_id"),
    "fim_mid": ("fim_mid_token_id", "middle_token_id"),
    "fim_pad": ("fim_pad_token_id",),
    "fim_rep": ("fim_rep_token_id",),
    "fim_sep": ("fim_sep_token_id",),
}

DNA_MARK = "\ue000".encode()  # suffix of the DNA words of a hybriddna vocabulary


@dataclass(frozen=True)
class Kind:
    """What a tokenizer.ggml.model stands for: algorithm, and defaults of special ids and flags."""

    algorithm: str
    special: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False


KINDS = {
    "llama": Kind("spm", {"bos": 1, "eos": 2, "unk": 0}, add_bos=True, add_space_prefix=True),
    "gpt2": Kind("bpe", {"bos": 11, "eos": 11}),
    "hybriddna": Kind("bpe", {"bos": 11, "eos": 11}),
    "whitespace": Kind("bpe", {"bos": 11, "eos": 11}),
    "gemma4": Kind("bpe"),
    "bert": Kind(
        "wpm",
        {"bos": 101, "unk": 100, "sep": 102, "pad": 0, "mask": 103},
        add_bos=True,
        clean_spaces=True,
    ),
    "t5": Kind("ugm", {"eos": 1, "unk": 2, "pad": 0}, add_eos=True),
    "rwkv": Kind("rwkv"),
    "plamo2": Kind("plamo2", {"bos": 1, "eos": 2, "unk": 0, "pad": 3}),
    "none": Kind("none"),
    "no_vocab": Kind("none"),
}


@dataclass
class Vocab:
    """A checked vocabulary; `attributes` may still be changed by `special.classify`."""

    model: str
    algorithm: str
    tokens: list[bytes]
    ids: dict[bytes, int]
    scores: NDArray[np.float32]
    attributes: NDArray[np.int32]
    special: dict[str, int | None]
    rules: PreTokenizer | None  # of byte-pair vocabularies only
    pre: str
    add_bos: bool
    add_eos: bool
    add_sep: bool
    add_space_prefix: bool
    clean_spaces: bool
    remove_extra_whitespaces: bool
    lowercase: bool
    strip_accents: bool
    suppress: tuple[int, ...]

    @property
    def n_vocab(self) -> int:
        return len(self.tokens)


def strings(metadata: Mapping[str, Any], key: str) -> list[bytes]:
    """A string array of the metadata as bytes, each up to its first zero byte as in C.

    TokenizerError if it is none.
    """
    if key not in metadata:
        raise TokenizerError(f"{key} is missing", hint="is this a vocabulary at all?")
    raw = getattr(metadata, "raw_strings", None)
    try:
        if raw is not None:
            found = list(raw(key))
        else:
            values = _sequence(metadata[key])
            found = [v.encode() if isinstance(v, str) else bytes(v) for v in values]
    except (TypeError, ValueError, LlamapyError) as error:
        raise TokenizerError(f"{key} is not an array of strings") from error
    if b"\0" in b"".join(found):
        found = [text.partition(b"\0")[0] for text in found]
    return found


def numbers(
    metadata: Mapping[str, Any], key: str, kinds: tuple[str, ...], n_least: int = 0
) -> NDArray[Any] | None:
    """A number array of the metadata, of a type in `kinds` (numpy names); None without the key."""
    if key not in metadata:
        return None
    raw = getattr(metadata, "array", None)
    try:
        value = raw(key) if raw is not None else _sequence(metadata[key])
    except (TypeError, ValueError, LlamapyError) as error:
        raise TokenizerError(f"{key} is not an array of numbers") from error
    if isinstance(value, list):  # a plain dict: no element type to check
        try:
            value = np.array(value, kinds[0])
        except (TypeError, ValueError, OverflowError) as error:
            raise TokenizerError(f"{key} is not an array of {kinds[0]}") from error
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.name not in kinds:
        raise TokenizerError(
            f"{key} is an array of {array.dtype.name}, expected {' or '.join(kinds)}"
        )
    if len(array) < n_least:
        raise TokenizerError(f"{key} has {len(array)} entries, the vocabulary has {n_least} tokens")
    return array


def _sequence(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value
    if isinstance(value, (list, tuple)):
        return list(value)
    raise TypeError("not an array")


def _flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    value = metadata.get(key, default)
    if not isinstance(value, (bool, np.bool_)):
        raise TokenizerError(f"{key} is {value!r}, expected true or false")
    return bool(value)


def read_vocab(metadata: Mapping[str, Any], pre: str | None = None) -> Vocab:
    """The vocabulary of a model. TokenizerError names the key that is missing or wrong.

    metadata: GGUF keys to values. pre: overrides tokenizer.ggml.pre.
    """
    model = metadata.get("tokenizer.ggml.model")
    if not isinstance(model, str):
        raise TokenizerError("tokenizer.ggml.model is missing", hint="this file has no vocabulary")
    kind = KINDS.get(model)
    if kind is None:
        raise TokenizerError(
            f"unknown vocabulary type {model!r} in tokenizer.ggml.model",
            hint=f"known: {', '.join(KINDS)}",
        )
    name = pre if pre is not None else str(metadata.get("tokenizer.ggml.pre", ""))
    rules = _rules(kind, "gemma4" if model == "gemma4" else name)
    if kind.algorithm == "none":
        tokens = [b""] * _size_without_tokens(metadata)
        ids: dict[bytes, int] = {}
    else:
        tokens, ids = _tokens(metadata)
    special = _special_ids(metadata, kind, rules, len(tokens))
    attributes = _attributes(metadata, len(tokens))
    folds = rules is None or rules.names != "whitespace"
    lowercase = _flag(metadata, "tokenizer.ggml.normalizer.lowercase", folds)
    if model == "hybriddna":
        tokens = _without_dna_marks(tokens, ids)
    return Vocab(
        model=model,
        algorithm=kind.algorithm,
        tokens=tokens,
        ids=ids,
        scores=_scores(metadata, len(tokens)),
        attributes=attributes,
        special=special,
        rules=rules,
        pre=name,
        lowercase=lowercase,
        strip_accents=_flag(metadata, "tokenizer.ggml.normalizer.strip_accents", lowercase),
        suppress=_suppressed(metadata, len(tokens)),
        **_flags(metadata, kind, rules),
    )


def _rules(kind: Kind, name: str) -> PreTokenizer | None:
    if kind.algorithm != "bpe":
        return None
    if not name:
        log.warning(
            "this model does not say how it splits text (tokenizer.ggml.pre): 'default' is used, "
            "which lowers its quality if wrong; --pre NAME sets it"
        )
    return pretok.rules(name)


def _flags(metadata: Mapping[str, Any], kind: Kind, rules: PreTokenizer | None) -> dict[str, bool]:
    prefix = "tokenizer.ggml."
    add_bos = kind.add_bos or bool(rules and rules.add_bos)
    add_sep = kind.algorithm == "wpm" or bool(rules and rules.add_sep)
    return {
        "add_bos": _flag(metadata, prefix + "add_bos_token", add_bos)
        or bool(rules and rules.force_bos),
        "add_eos": _flag(metadata, prefix + "add_eos_token", kind.add_eos),
        "add_sep": _flag(metadata, prefix + "add_sep_token", add_sep),
        "add_space_prefix": _flag(metadata, prefix + "add_space_prefix", kind.add_space_prefix),
        "clean_spaces": rules.clean_spaces if rules else kind.clean_spaces,
        "remove_extra_whitespaces": _flag(metadata, prefix + "remove_extra_whitespaces", False),
    }


def _size_without_tokens(metadata: Mapping[str, Any]) -> int:
    size = metadata.get(f"{metadata.get('general.architecture', '')}.vocab_size", 0)
    if not isinstance(size, int) or not 0 <= size < 1 << 31:
        raise TokenizerError(f"vocab_size is {size!r}, expected a number of tokens")
    return size


def _tokens(metadata: Mapping[str, Any]) -> tuple[list[bytes], dict[bytes, int]]:
    key = "tokenizer.ggml.tokens"
    tokens = strings(metadata, key)
    if not tokens:
        raise TokenizerError(f"{key} is empty")
    ids = dict(zip(tokens, range(len(tokens))))
    if b"" in ids:
        tokens = [text or b"[EMPTY_%d]" % i for i, text in enumerate(tokens)]
        ids = dict(zip(tokens, range(len(tokens))))
    if len(ids) != len(tokens):
        seen: dict[bytes, int] = {}
        for i, text in enumerate(tokens):
            if text in seen:
                shown = text.decode("utf-8", "replace")
                raise TokenizerError(f"{key}: tokens {seen[text]} and {i} are both {shown!r}")
            seen[text] = i
    return tokens, ids


def _without_dna_marks(tokens: list[bytes], ids: dict[bytes, int]) -> list[bytes]:
    """Texts without the mark of DNA words, which follow the token <oov>."""
    first = ids.get(b"<oov>", len(tokens)) + 1
    return tokens[:first] + [
        text[: -len(DNA_MARK)] if text.endswith(DNA_MARK) and text != DNA_MARK else text
        for text in tokens[first:]
    ]


def _scores(metadata: Mapping[str, Any], n_tokens: int) -> NDArray[np.float32]:
    scores = numbers(metadata, "tokenizer.ggml.scores", ("float32", "int32"), n_tokens)
    if scores is None:
        return np.zeros(n_tokens, np.float32)
    scores = scores[:n_tokens].astype(np.float32)
    if np.isnan(scores).any():
        at = int(np.isnan(scores).argmax())
        raise TokenizerError(f"tokenizer.ggml.scores: the score of token {at} is not a number")
    return scores


def _attributes(metadata: Mapping[str, Any], n_tokens: int) -> NDArray[np.int32]:
    types = numbers(metadata, "tokenizer.ggml.token_type", ("int32", "uint32"), n_tokens)
    if types is None:
        return np.full(n_tokens, NORMAL, np.int32)
    table = np.array([*TYPE_ATTRIBUTES, 0], np.int32)
    return table[np.clip(types[:n_tokens].astype(np.int64), 0, len(table) - 1)]


def _special_ids(
    metadata: Mapping[str, Any], kind: Kind, rules: PreTokenizer | None, n_tokens: int
) -> dict[str, int | None]:
    special: dict[str, int | None] = {}
    for name, keys in SPECIAL_KEYS.items():
        default = kind.special.get(name)
        if name == "bos" and rules is not None and rules.no_bos:
            default = None
        special[name] = default if default is not None and default < n_tokens else None
        for suffix in keys:
            key = f"tokenizer.ggml.{suffix}"
            value = metadata.get(key)
            if value is None:
                continue
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool):
                raise TokenizerError(f"{key} is {value!r}, expected a token id")
            if not 0 <= value < n_tokens:
                raise TokenizerError(f"{key} is {value}, the vocabulary has {n_tokens} tokens")
            special[name] = int(value)
    return special


def _suppressed(metadata: Mapping[str, Any], n_tokens: int) -> tuple[int, ...]:
    ids = numbers(metadata, "tokenizer.ggml.suppress_tokens", ("int32",))
    return () if ids is None else tuple(i for i in ids.tolist() if 0 <= i < n_tokens)
