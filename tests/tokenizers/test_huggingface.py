"""Unigram and WordPiece ids against sentencepiece and tokenizers (record_tokenizers_hf.py)."""

from __future__ import annotations

import base64
import gzip
import json
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.tokenizers.tokenizer import Tokenizer, load

FILE = Path(__file__).parent.parent.parent / "fixtures" / "tokenizers" / "hf.json.gz"


@cache
def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
    return found


def unigram(given: dict[str, Any]) -> Tokenizer:
    charsmap = base64.b64decode(given["charsmap"])
    return load(
        {
            "tokenizer.ggml.model": "t5",
            "tokenizer.ggml.tokens": given["tokens"],
            "tokenizer.ggml.scores": np.array(given["scores"], np.float32),
            "tokenizer.ggml.token_type": np.array(given["types"], np.int32),
            "tokenizer.ggml.precompiled_charsmap": np.frombuffer(charsmap, np.uint8),
            "tokenizer.ggml.add_space_prefix": True,
            "tokenizer.ggml.remove_extra_whitespaces": True,
        }
    )


def wordpiece(given: dict[str, Any]) -> Tokenizer:
    return load({"tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": given["tokens"]})


def llama_cpp_differs(text: str) -> bool:
    """llama.cpp keeps only the first character of a decomposition, and drops all marks with it;
    Hugging Face keeps Hangul's parts and those marks that take space."""
    return any(
        sum(unicodedata.category(part) != "Mn" for part in unicodedata.normalize("NFD", char)) > 1
        or unicodedata.category(char) == "Mc"
        for char in text
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_unigram_is_sentencepiece_s(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamapy.tokenizers.ugm.worthwhile", lambda n, tables: compiled)
    tokenizer = unigram(recorded()["unigram"])
    rows = recorded()["unigram"]["rows"]
    assert len(rows) == 400
    for text, ids in rows:
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert tokenizer.encode(text) == [*ids, 1]


@pytest.mark.parametrize("compiled", [False, True])
def test_wordpiece_is_that_of_minilm(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llamapy.tokenizers.wpm.worthwhile", lambda n, tables: compiled)
    tokenizer = wordpiece(recorded()["wordpiece"])
    rows = [row for row in recorded()["wordpiece"]["rows"] if not llama_cpp_differs(row[0])]
    assert len(rows) > 150
    for text, ids in rows:
        assert tokenizer.encode(text) == ids, text
