"""Text from streams of ids, and round trips of bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapy.gguf.reader import GGUFFile
from llamapy.tokenizers.tokenizer import StreamDecoder, Tokenizer, load

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "tokenizers"


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    with GGUFFile(FOLDER / f"{kind}.gguf") as file:
        return load(file.metadata)


def byte_ids(data: bytes) -> list[int]:
    """Each byte as a token of its own."""
    found = [tokenizer_of("spm").token_id(b"<0x%02X>" % byte) for byte in data]
    return [token for token in found if token is not None]


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(tokenizer)
    return [*map(decoder.push, ids), decoder.flush()]


@given(st.binary(max_size=60))
def test_a_stream_of_bytes_is_the_text_with_replacements(data: bytes) -> None:
    assert "".join(streamed(tokenizer_of("spm"), byte_ids(data))) == data.decode("utf-8", "replace")


@given(st.text(max_size=20))
def test_characters_come_as_soon_as_they_are_complete(text: str) -> None:
    text = text.encode("utf-8", "replace").decode()
    chunks = streamed(tokenizer_of("spm"), byte_ids(text.encode()))
    expected = [""] * len(chunks)
    at = 0
    for char in text:
        at += len(char.encode())
        expected[at - 1] = char
    assert chunks == expected


def test_an_incomplete_character_at_the_end_is_replaced_once() -> None:
    tokenizer = tokenizer_of("spm")
    for n in (1, 2, 3):
        assert streamed(tokenizer, byte_ids("a😀".encode()[: 1 + n])) == ["a", *[""] * n, "\ufffd"]


def test_a_flushed_stream_starts_anew() -> None:
    decoder = StreamDecoder(tokenizer_of("spm"))
    first, second = byte_ids("é".encode())
    assert (decoder.push(first), decoder.flush(), decoder.flush()) == ("", "\ufffd", "")
    assert decoder.push(first) + decoder.push(second) == "é"


def test_control_tokens_show_only_when_asked() -> None:
    tokenizer = tokenizer_of("spm")
    end = tokenizer.token_id("</s>")
    assert end is not None
    assert StreamDecoder(tokenizer).push(end) == ""
    assert StreamDecoder(tokenizer, special=True).push(end) == "</s>"


@pytest.mark.parametrize("kind", ["bpe", "rwkv"])
@given(data=st.binary(max_size=80))
def test_byte_level_vocabularies_give_every_text_back(kind: str, data: bytes) -> None:
    """Bytes that are no UTF-8 come back as llama.cpp decodes them: through its code points."""
    from llamapy.tokenizers import unicode

    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(data, add_special=False, parse_special=False)
    text = b"".join(map(tokenizer.piece, ids))
    assert text == (unicode.encode(unicode.decode(data)) if kind == "bpe" else data)


@given(st.text(max_size=60), st.integers(0, 60))
def test_ids_are_the_same_for_text_and_bytes(text: str, cut: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    tokenizer = tokenizer_of("spm")
    ids = tokenizer.encode(text)
    assert tokenizer.encode(text.encode()) == ids
    # nor do earlier calls matter, whatever they have left in a cache
    tokenizer.encode(text[:cut])
    assert tokenizer.encode(text) == ids
