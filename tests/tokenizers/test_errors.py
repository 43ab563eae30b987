"""Vocabularies that are no good are refused with the key and the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from llamapy.core.errors import TokenizerError
from llamapy.tokenizers.tokenizer import Tokenizer, load

PREFIX = "tokenizer.ggml."


def metadata(**changes: Any) -> dict[str, Any]:
    """A small byte-pair vocabulary with changes; None takes a key out."""
    tokens = ["a", "b", "ab", "<s>", "c"]
    found: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": ["a b"],
        "token_type": np.array([1, 1, 1, 3, 1], np.int32),
        "bos_token_id": 3,
        "eos_token_id": 3,
    }
    found.update(changes)
    return {PREFIX + key: value for key, value in found.items() if value is not None}


def test_a_plain_dict_is_enough() -> None:
    tokenizer = load(metadata())
    assert tokenizer.encode("abcab", add_special=False) == [2, 4, 2]
    assert tokenizer.decode([2, 4]) == b"abc"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": None}, r"tokenizer.ggml.model is missing"),
        ({"model": "magic"}, r"unknown vocabulary type 'magic'"),
        ({"pre": "magic"}, r"unknown pre-tokenizer 'magic'.*--pre"),
        ({"tokens": None}, r"tokens is missing"),
        ({"tokens": 7}, r"tokens is not an array of strings"),
        ({"tokens": []}, r"tokens is empty"),
        ({"tokens": ["a", "b", "a", "<s>", "c"]}, r"tokens: tokens 0 and 2 are both 'a'"),
        ({"merges": None}, r"merges is missing"),
        ({"merges": "a b"}, r"merges is not an array of strings"),
        ({"scores": np.zeros(3, np.float32)}, r"scores has 3 entries, the vocabulary has 5"),
        ({"scores": np.zeros(5, np.uint8)}, r"scores is an array of uint8, expected float32"),
        ({"scores": np.full(5, np.nan, np.float32)}, r"scores: the score of token 0 is not"),
        ({"token_type": np.zeros(4, np.int32)}, r"token_type has 4 entries, .* has 5"),
        ({"token_type": ["x"] * 5}, r"token_type is not an array of int32"),
        ({"bos_token_id": 5}, r"bos_token_id is 5, the vocabulary has 5 tokens"),
        ({"eos_token_id": -1}, r"eos_token_id is -1, the vocabulary has 5 tokens"),
        ({"eot_token_id": "x"}, r"eot_token_id is 'x', expected a token id"),
        ({"add_bos_token": 1}, r"add_bos_token is 1, expected true or false"),
        ({"suppress_tokens": np.zeros(1, np.float32)}, r"suppress_tokens is an array of float32"),
        (
            {"model": "t5", "unknown_token_id": None, "tokens": ["a"]},
            r"unknown_token_id is missing",
        ),
        ({"model": "plamo2"}, r"no byte token <0x00>"),
        (
            {"model": "t5", "precompiled_charsmap": np.array([9, 0, 0, 0, 1], np.uint8)},
            r"precompiled_charsmap has 5 bytes, its trie alone should have 9",
        ),
    ],
)
def test_wrong_metadata_is_refused(changes: dict[str, Any], message: str) -> None:
    if changes.get("tokens") == ["a"]:
        changes = {**changes, "token_type": None, "bos_token_id": None, "eos_token_id": None}
    with pytest.raises(TokenizerError, match=message):
        load(metadata(**changes))


def test_ids_outside_the_vocabulary_are_refused() -> None:
    tokenizer = load(metadata())
    for call in (tokenizer.piece, tokenizer.token_text, tokenizer.attr):
        for token in (5, -1):
            with pytest.raises(
                TokenizerError, match=f"token {token} is not in the vocabulary of 5"
            ):
                call(token)
    with pytest.raises(TokenizerError):
        tokenizer.decode([0, 9])


def test_a_wanted_token_that_is_missing_is_an_error() -> None:
    tokenizer = load(metadata(add_bos_token=True, bos_token_id=None))
    with pytest.raises(TokenizerError, match="BOS"):
        tokenizer.encode("a")


def test_a_model_without_vocabulary_takes_no_text() -> None:
    data = {PREFIX + "model": "none", "general.architecture": "x", "x.vocab_size": 7}
    tokenizer = load(data)
    assert tokenizer.n_vocab == 7
    assert tokenizer.encode("") == []
    with pytest.raises(TokenizerError, match="has no vocabulary"):
        tokenizer.encode("a")


def test_a_doubled_bos_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = load(metadata(add_bos_token=True))
    assert tokenizer.encode("<s>a") == [3, 3, 0]
    assert "BOS token of its own" in caplog.text
    caplog.clear()
    assert tokenizer.encode("<s>a", add_special=False) == [3, 0]
    assert tokenizer.encode("a") == [3, 0]
    assert caplog.text == ""


def test_a_byte_without_token_is_an_error_in_sentencepiece(monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"model": "llama", "unknown_token_id": None, "add_space_prefix": False}
    for compiled in (False, True):
        tokenizer = load(metadata(**changes))
        tokenizer.vocab.special["unk"] = None
        monkeypatch.setattr("llamapy.tokenizers.spm.worthwhile", lambda n, tables, c=compiled: c)
        assert tokenizer.encode("ab", add_special=False) == [2]
        with pytest.raises(TokenizerError, match="no token for byte 0x7A"):
            tokenizer.encode("z")


def test_special_tokens_by_name_and_text() -> None:
    tokens = ["a", "<s>", "<|im_end|>", "</s>", "<|fim_prefix|>", "<unused1>"]
    types = np.array([1, 3, 1, 3, 1, 3], np.int32)
    tokenizer: Tokenizer = load(
        metadata(tokens=tokens, token_type=types, merges=[], bos_token_id=1, eos_token_id=3)
    )
    assert (tokenizer.bos, tokenizer.eos, tokenizer.eot, tokenizer.fim_pre) == (1, 3, 2, 4)
    assert tokenizer.pad is None
    assert tokenizer.eog_ids == {2, 3}
    assert tokenizer.is_eog(2)
    assert not tokenizer.is_eog(1)
    assert tokenizer.attr(2) & 8
    assert tokenizer.attr(5) & 2
    with pytest.raises(AttributeError):
        _ = tokenizer.nothing
