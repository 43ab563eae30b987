"""Splitting: published patterns on a Unicode-aware engine, the compiled splitters, long runs."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st
from token_texts import texts

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers import unicode
from llamapy.tokenizers.long_splits import is_compiled, long_bounds
from llamapy.tokenizers.pretok import Splitter, rules
from llamapy.tokenizers.pretok_rules import BY_NAME, RULE_SETS

END = r"\s*[\r\n]+|\s+(?!\S)|\s+"
OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ASCII_MARKS = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
CHUNKS = rf"{ASCII_MARKS}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
DIGITS, KANJI = r"\p{N}{1,3}", "[一-龥\u3040-\u309f\u30a0-\u30ff]+"

# as the tokenizer.json files have them, each applied inside the pieces of the one before
PUBLISHED = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
    "llama-bpe": [rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{OTHER}|{END}"],
    "qwen2": [rf"{SHORT}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{OTHER}|{END}"],
    "ufakzeka": [rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{OTHER}|{END}"],
    "deepseek-v3": [
        DIGITS,
        KANJI,
        rf"{CHUNKS}| ?[\p{{P}}\p{{S}}]+[\r\n]*|{END}",
    ],
    "spark2_5": [
        DIGITS,
        KANJI,
        rf"{CHUNKS}| ?[\p{{P}}\p{{S}}]+|[\r\n]|\s+(?!\S)|\s+",
        r"\p{N}",
    ],
}
# letters, marks, numbers, signs and white space that no Unicode version disagrees about
ALPHABET = "aAsStTlLrReEdDmMvV'zéßжあ漢字中ªé\u0301\u09cd0129²٣ \t\n\r.,!-(€+<\u3000\u00a0😀"


def published(name: str, text: str) -> list[str]:
    pieces = [text]
    for pattern in PUBLISHED[name]:
        split = regex.compile(f"({pattern})")
        pieces = [part for piece in pieces for part in split.split(piece) if part]
    return pieces


@pytest.mark.parametrize("name", PUBLISHED)
@given(text=st.text(ALPHABET, max_size=40))
def test_pieces_are_those_of_the_published_pattern(name: str, text: str) -> None:
    assert [p for p in Splitter(rules(name)).split(text) if p] == published(name, text)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("ab\u2581cd", ["\u2581ab", "\u2581cd"]),
        ("\u2581\u2581a", ["\u2581", "\u2581a"]),
        ("a\n\nb\n", ["\u2581a", "\n\n", "\u2581b", "\n"]),
    ],
)
def test_mmbert_starts_each_piece_with_a_space_mark(text: str, pieces: list[str]) -> None:
    assert Splitter(rules("mmbert")).split(text) == pieces


@pytest.mark.parametrize("number", range(len(RULE_SETS)))
def test_compiled_bounds_are_those_of_the_patterns(number: int) -> None:
    rule_set = RULE_SETS[number]
    if rule_set.word_starts:
        return
    for data in texts(900 + number, 150):
        text = unicode.decode(data)
        pieces = [text[a:b] for a, b in pairwise(long_bounds(rule_set, text).tolist())]
        assert pieces == [piece for piece in Splitter(rule_set).split(text) if piece], text
        assert "".join(pieces) == text


def test_the_common_rule_sets_are_compiled_whole() -> None:
    for name in ("gpt-2", "llama-bpe", "qwen2", "smollm", "falcon", "default", "kimi-k2"):
        assert all(map(is_compiled, BY_NAME[name].patterns)), name


@pytest.mark.parametrize("name", sorted({r.names.split()[0] for r in RULE_SETS}))
def test_long_runs_take_linear_time(name: str) -> None:
    splitter = Splitter(rules(name))
    for char in ("A", " ", "\n", "好", "😀", "1"):
        times = []
        for n in (5_000, 20_000):
            start = time.process_time()
            splitter.split(char * n)
            times.append(time.process_time() - start)
        assert times[1] < 8 * times[0] + 0.05, (char, times)


def test_an_unknown_name_says_what_to_pass() -> None:
    with pytest.raises(TokenizerError, match=r"'nope'.*--pre"):
        rules("nope")
