"""Real vocabularies: llama.cpp's own expectations, and the peer on random texts."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from token_texts import texts

from llamapy.gguf.reader import GGUFFile
from llamapy.tokenizers.tokenizer import Tokenizer, load
from llamapy.tokenizers.vocab import CONTROL, UNKNOWN, USER_DEFINED

if TYPE_CHECKING:
    from peer import Peer

NAMES = (
    "aquila baichuan bert-bge command-r deepseek-coder deepseek-llm falcon gemma-4 gpt-2 gpt-neox"
    " llama-bpe llama-spm mpt nomic-bert-moe phi-3 qwen2 qwen35 refact starcoder"
)
WITHOUT_EXPECTATIONS = {"aquila", "baichuan", "gpt-neox", "nomic-bert-moe"}
SEPARATOR = "\n__ggml_vocab_test__\n"
N_TEXTS = 60  # the slow test takes N_SLOW
N_SLOW = 2000

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Doubled BOS tokens are meant here."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", params=NAMES.split())
def vocabulary(request: pytest.FixtureRequest, vocabularies: Path) -> Path:
    return vocabularies / f"ggml-vocab-{request.param}.gguf"


def opened(path: Path) -> Tokenizer:
    with GGUFFile(path) as file:
        return load(file.metadata)


def test_ids_are_those_of_the_out_file(vocabulary: Path) -> None:
    name = vocabulary.stem.removeprefix("ggml-vocab-")
    asked = Path(f"{vocabulary}.inp")
    assert asked.exists() == (name not in WITHOUT_EXPECTATIONS)
    if not asked.exists():
        return
    expected = Path(f"{vocabulary}.out").read_text(encoding="utf-8").split("\n")
    given = asked.read_bytes().decode().split(SEPARATOR)
    tokenizer = opened(vocabulary)
    assert len(given) >= 46
    for text, ids in zip(given, expected):
        found = tokenizer.encode(text, add_special=False, parse_special=False)
        assert found == list(map(int, ids.split())), text


def compare(vocabulary: Path, peer: Peer, n: int) -> None:
    tokenizer = opened(vocabulary)
    vocab = tokenizer.vocab
    special = (vocab.attributes & (CONTROL | UNKNOWN | USER_DEFINED)).nonzero()[0].tolist()
    marks = [vocab.tokens[token] for token in special[:: max(1, len(special) // 40)]]
    with peer.open(vocabulary, vocab_only=True) as model:
        for i, text in enumerate(texts(sum(vocabulary.name.encode()), n, marks)):
            add, parse = bool(i & 1), bool(i & 2)
            ids = model.tokenize(text, add_special=add, parse_special=parse)
            assert tokenizer.encode(text, add_special=add, parse_special=parse) == ids, text
            back = model.detokenize(ids, remove_special=add, unparse_special=parse)
            assert tokenizer.decode(ids, remove_special=add, special=parse) == back, ids


@pytest.mark.peer
def test_ids_and_texts_are_the_peer_s(vocabulary: Path, peer: Peer) -> None:
    compare(vocabulary, peer, N_TEXTS)


@pytest.mark.peer
@pytest.mark.slow
def test_more_ids_and_texts_are_the_peer_s(vocabulary: Path, peer: Peer) -> None:
    compare(vocabulary, peer, N_SLOW)
