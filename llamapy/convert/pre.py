"""Which pre-tokenizer a tokenizer.json has, found by the patterns in it.

llama.cpp knows pre-tokenizers by name. The patterns of each name are in tokenizers/pretok_rules.py;
here both sides are brought into one spelling and compared. A fingerprint (pre_hashes.py) decides
between names with the same patterns, and finds those whose patterns are written otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from llamapy.convert import pre_hashes
from llamapy.core.errors import LlamapyError, TokenizerError
from llamapy.core.log import log
from llamapy.tokenizers import pretok_rules
from llamapy.tokenizers.pretok_rules import PreTokenizer

Ids = Callable[[str], list[int]]
"""Ids of pre_hashes.TEXT with the pre-tokenizer of this name."""

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NAMED = {
    "@gpt2": _GPT2,
    "@llama3": rf"{pretok_rules.SHORT}|{pretok_rules.WORD}|\p{{N}}{{1,3}}|{pretok_rules.OTHER}|"
    rf"{pretok_rules.SPACE}",
    "@qwen2": rf"{pretok_rules.SHORT}|{pretok_rules.WORD}|\p{{N}}|{pretok_rules.OTHER}|"
    rf"{pretok_rules.SPACE}",
    "@qwen35": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+",
}
_WELL_KNOWN = (
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "smollm",
    "starcoder",
    "deepseek-v3",
    "gpt-4o",
    "tekken",
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_START = r"[^\r\n\p{L}\p{N}]?"
# Patterns that llama.cpp has rewritten for its own engine, as the models have them.
_REWRITTEN: dict[tuple[str, ...], str] = {
    (
        rf"{_START}{_UPPER}*{_LOWER}+{pretok_rules.SHORT}?|{_START}{_UPPER}+{_LOWER}*"
        rf"{pretok_rules.SHORT}?|\p{{N}}{{1,3}}|{pretok_rules.OTHER_SLASH}|{pretok_rules.SPACE}",
    ): "gpt-4o",
    (
        rf"{_START}{_UPPER}*{_LOWER}+|{_START}{_UPPER}+{_LOWER}*|\p{{N}}"
        rf"|{pretok_rules.OTHER_SLASH}|{pretok_rules.SPACE}",
    ): "tekken",
    (r"\punctuation", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"): "falcon",
    (r" ?[^(\s|[.,!?…。，、।۔،])]+",): "bloom",
}


def patterns(tokenizer: Mapping[str, Any]) -> tuple[str, ...]:
    """The split patterns of a tokenizer.json, one after the other, in one spelling."""
    found: list[str] = []
    _collect(tokenizer.get("pre_tokenizer"), found)
    return tuple(map(_one_spelling, found))


def _collect(node: Any, found: list[str]) -> None:
    kind = node.get("type") if isinstance(node, dict) else None
    if kind == "Sequence":
        for inner in node.get("pretokenizers", []):
            _collect(inner, found)
    elif kind == "Split":
        pattern = node.get("pattern") or {}
        text = pattern.get("Regex")
        found.append(text if text is not None else re.escape(str(pattern.get("String"))))
    elif kind == "Digits":
        found.append(r"\p{N}" if node.get("individual_digits") else r"\p{N}+")
    elif kind == "ByteLevel":
        if node.get("use_regex", True):
            found.append(_GPT2)
    elif kind == "Punctuation":
        found.append(r"\punctuation")
    elif kind is not None:
        found.append(f"\\{kind}")


def _one_spelling(pattern: str) -> str:
    """The pattern without the freedom of writing the same in several ways."""
    text = _NAMED.get(pattern, pattern)
    text = text.replace("\r", r"\r").replace("\n", r"\n")
    short = pretok_rules.SHORT
    text = text.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", short)
    text = text.replace(short[3:-1], "'short").replace(r"(?i:[sdmt]|ll|ve|re)", "'short")
    text = text.replace("(?:'short)", "'short").replace("'(?:'short)", "'short")
    text = re.sub(r"\\s\+\(\?!\\S\)(\|\\s\+)?$", r"\\s+(?!\\S)|\\s+", text)
    return text.replace(r"\s*[\r\n]+", r"\s*[\r\n]+").replace(r"\s*[\r\n]|", r"\s*[\r\n]+|")


@cache
def _known() -> dict[tuple[str, ...], list[PreTokenizer]]:
    """{patterns in one spelling: rule sets}."""
    found: dict[tuple[str, ...], list[PreTokenizer]] = {}
    for rules in pretok_rules.RULE_SETS:
        found.setdefault(tuple(map(_one_spelling, rules.patterns)), []).append(rules)
    for several, name in _REWRITTEN.items():
        key = tuple(map(_one_spelling, several))
        found.setdefault(key, []).append(pretok_rules.BY_NAME[name])
    return found


def identify(tokenizer: Mapping[str, Any], config: Mapping[str, Any], ids: Ids, where: str) -> str:
    """The name for tokenizer.ggml.pre.

    tokenizer  tokenizer.json
    config     tokenizer_config.json
    ids        makes ids, to be compared with fingerprints
    TokenizerError shows the patterns if nothing fits.
    """
    wanted = patterns(tokenizer)
    candidates = _known().get(wanted, [])
    if candidates:
        best = max(candidates, key=lambda rules: _likeness(rules, tokenizer, config))
        name = _usual(best)
        seen = _fingerprint(name, ids)
        if seen is not None and seen in pretok_rules.BY_NAME:
            if _known_patterns(seen) != wanted and pretok_rules.BY_NAME[seen] not in candidates:
                log.warning(
                    "%s: its split patterns are those of %s, but a test text gives the ids of %s,"
                    " which is taken (--pre decides)",
                    where,
                    name,
                    seen,
                )
            return seen
        return name
    for rules in pretok_rules.RULE_SETS:
        seen = _fingerprint(rules.names.split()[0], ids)
        if seen is not None:
            return seen
    shown = " then ".join(f"'{p}'" for p in wanted) or "no patterns"
    normalizer = (tokenizer.get("normalizer") or {}).get("type")
    also = f" after normalizer {normalizer}" if normalizer else ""
    raise TokenizerError(
        f"{where}: its pre-tokenizer is not known: {shown}{also}",
        hint="--pre NAME uses a known one: " + ", ".join(map(_usual, _some())),
    )


def _usual(rules: PreTokenizer) -> str:
    """The name that a model of unknown make gets: one that converted files have."""
    names = rules.names.split()
    usual = [n for n in (*_WELL_KNOWN, *pre_hashes.KNOWN.values()) if n in names]
    return usual[0] if usual else names[0]


def _known_patterns(name: str) -> tuple[str, ...]:
    return tuple(map(_one_spelling, pretok_rules.BY_NAME[name].patterns))


def _some() -> list[PreTokenizer]:
    return [pretok_rules.BY_NAME[name] for name in _WELL_KNOWN]


def _likeness(rules: PreTokenizer, tokenizer: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """How many of the other flags of the rule set are those of the tokenizer."""
    model = tokenizer.get("model") or {}
    merges_ignored = bool(model.get("ignore_merges", False))
    cleans = config.get("clean_up_tokenization_spaces")  # what it means if it is not said, varies
    return 2 * (rules.ignore_merges == merges_ignored) + (cleans in (None, rules.clean_spaces))


def _fingerprint(name: str, ids: Ids) -> str | None:
    try:
        return pre_hashes.name_of(ids(name))
    except LlamapyError:
        return None


def check_name(name: str) -> str:
    """`name` if llama.cpp knows such a pre-tokenizer. TokenizerError lists them otherwise."""
    if name not in pretok_rules.BY_NAME:
        known = ", ".join(sorted(pretok_rules.BY_NAME))
        raise TokenizerError(f"there is no pre-tokenizer {name!r}", hint=f"there are {known}")
    return name
