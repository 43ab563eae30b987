"""Tracked text: the same text as str gives, and masks that follow the characters."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llamapy.chat.tracked import Text, concat, has_user_text, join, mask_of, spans

# The user writes in capitals of a private area, so that every character shows where it is from.
USER = "\ue001\ue002\ue003"
WORDS = st.text("ab \n" + USER, max_size=12)


def tracked(text: str) -> Text:
    return Text(text, bytes(c in USER for c in text))


def as_it_should_be(result: Any, plain: Any) -> None:
    """The same text as str makes, and user characters marked, others not."""
    if isinstance(plain, str):
        assert str.__eq__(result, plain)
        assert mask_of(result) == bytes(c in USER for c in plain)
    elif isinstance(plain, (list, tuple)):
        assert len(result) == len(plain)
        for one, other in zip(result, plain):
            as_it_should_be(one, other)
    else:
        assert result == plain


CALLS = [
    ("strip",), ("lstrip",), ("rstrip",), ("strip", "a\ue001"), ("lstrip", "b "), ("rstrip", "a"),
    ("split",), ("split", "a"), ("split", "ab"), ("split", None, 1), ("split", "a", 1),
    ("rsplit",), ("rsplit", "a"), ("rsplit", None, 1), ("rsplit", " ", 2), ("splitlines",),
    ("splitlines", True), ("partition", "a"), ("rpartition", "a"), ("partition", "\ue001"),
    ("removeprefix", "a"), ("removesuffix", "b"), ("upper",), ("lower",), ("casefold",),
    ("swapcase",), ("title",), ("capitalize",), ("center", 9), ("center", 8, "-"), ("ljust", 9),
    ("rjust", 9, "x"), ("replace", "a", "bb"), ("replace", "ab", ""), ("replace", "b", "\ue003"),
    ("replace", "a", "", 1), ("count", "a"), ("find", "b"), ("startswith", "a"), ("isspace",),
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=str)
@settings(max_examples=40)
@given(text=WORDS)
def test_methods_are_those_of_str(call: tuple, text: str) -> None:
    method, *args = call
    plain = getattr(text, method)(*args)
    marked = [tracked(arg) if isinstance(arg, str) else arg for arg in args]
    as_it_should_be(getattr(tracked(text), method)(*marked), plain)


@given(WORDS, WORDS, st.integers(-14, 14), st.integers(-14, 14), st.sampled_from([1, 2, -1]))
def test_operators(text: str, other: str, start: int, stop: int, step: int) -> None:
    t = tracked(text)
    as_it_should_be(t[start:stop:step], text[start:stop:step])
    as_it_should_be(t + tracked(other), text + other)
    as_it_should_be(t * 3, text * 3)
    as_it_should_be(2 * t, text * 2)
    as_it_should_be(list(t), list(text))
    as_it_should_be(list(reversed(t)), list(reversed(text)))
    assert str(t) is t and t == text and hash(t) == hash(text)
    if -len(text) <= start < len(text):
        as_it_should_be(t[start], text[start])
    else:
        with pytest.raises(IndexError):
            t[start]
    plain = "".join(c for c in other if c not in USER)
    as_it_should_be(plain + t, plain + text)
    as_it_should_be(t + plain, text + plain)


@given(st.lists(WORDS, max_size=5), WORDS)
def test_joining(words: list[str], separator: str) -> None:
    marked = [tracked(word) for word in words]
    as_it_should_be(join(tracked(separator), marked), separator.join(words))
    as_it_should_be(tracked(separator).join(marked), separator.join(words))
    as_it_should_be(concat(marked), "".join(words))
    assert type(concat(["a", "b"])) is str


@given(st.lists(st.tuples(st.text("ab\u1234", max_size=4), st.booleans()), max_size=8))
def test_spans_cut_at_the_borders(parts: list[tuple[str, bool]]) -> None:
    whole = concat([text if template else Text(text) for text, template in parts])
    cut = spans(whole)
    assert "".join(text for text, _ in cut) == "".join(text for text, _ in parts)
    flags = [flag for text, flag in parts for _ in text]
    assert [flag for text, flag in cut for _ in text] == flags
    assert all(text for text, _ in cut)
    assert all(a[1] != b[1] for a, b in zip(cut, cut[1:]))


def test_characters_that_grow_take_their_mask_along() -> None:
    text = Text("ßaŉ", b"\1\0\1")
    assert text.upper() == "SSAʼN" and text.upper().mask == b"\1\1\0\1\1"
    assert Text("ßa", b"\1\0").title().mask == b"\1\1\1"  # unknown: the user's, to be safe


def test_unknown_kinds_of_text_are_the_users() -> None:
    class Other(str):
        pass

    assert mask_of(Other("ab")) == b"\1\1" and mask_of("ab") == b"\0\0"
    assert has_user_text({"a": [("b", Other("c"))]})
    assert not has_user_text({"a": [("b", 3, None)]})
    assert Text("abc").mask == b"\1\1\1"
