"""Ids of small vocabularies of every kind against llama.cpp's, recorded by record_tokenizers.py."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llamapy.gguf.reader import GGUFFile
from llamapy.tokenizers import bpe, plamo2, rwkv, spm, ugm, wpm
from llamapy.tokenizers.pretok_rules import BY_NAME
from llamapy.tokenizers.tokenizer import Tokenizer, load

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "tokenizers"
KINDS = ("bpe", "plamo2", "raw", "rwkv", "spm", "ugm", "wpm")
ENCODERS = (bpe, plamo2, rwkv, spm, ugm, wpm)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Doubled BOS tokens are meant here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(params=["plain", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of encoding, whatever the length of the text."""
    compiled = request.param == "compiled"
    for module in ENCODERS:
        monkeypatch.setattr(module, "worthwhile", lambda n_bytes, tables: compiled)
    return str(request.param)


def tokenizer_of(name: str, pre: str | None = None, model: str | None = None) -> Tokenizer:
    with GGUFFile(FOLDER / f"{name}.gguf") as file:
        metadata: dict[str, Any] = {key: file.metadata[key] for key in file.metadata}
        metadata["tokenizer.ggml.tokens"] = file.metadata.raw_strings("tokenizer.ggml.tokens")
    metadata["tokenizer.ggml.model"] = model or metadata["tokenizer.ggml.model"]
    return load(metadata, pre)


def recorded(name: str) -> dict[str, list[list[Any]]]:
    rows: dict[str, list[list[Any]]] = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_llama_cpp_s(kind: str, way: str) -> None:
    tokenizer = tokenizer_of(kind)
    rows = recorded("ids")[kind]
    assert len(rows) == 250
    for text, add_special, parse_special, expected in rows:
        ids = tokenizer.encode(
            bytes.fromhex(text), add_special=add_special, parse_special=parse_special
        )
        assert ids == expected, bytes.fromhex(text)


RECORDED_PRE = recorded("pre")


@pytest.mark.parametrize("pre", RECORDED_PRE)
def test_every_pre_tokenizer_splits_as_llama_cpp(pre: str, way: str) -> None:
    model = "whitespace" if pre == "whitespace" else "gpt2"
    tokenizer = tokenizer_of("bpe" if BY_NAME[pre].byte_encode else "raw", pre, model)
    for text, expected in RECORDED_PRE[pre]:
        data = bytes.fromhex(text)
        assert tokenizer.encode(data, add_special=False, parse_special=False) == expected, data


def test_almost_every_rule_set_is_recorded() -> None:
    rule_sets = {rules.names.split()[0] for rules in BY_NAME.values()}
    assert len(BY_NAME) == 92
    # newer than the recorded llama.cpp; test_pretok.py has other truths for them
    assert rule_sets - set(RECORDED_PRE) == {"spark2_5", "ufakzeka", "mmbert"}
