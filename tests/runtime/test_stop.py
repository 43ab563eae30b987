"""Stop strings and streamed text: the same text however it is cut into pieces."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llamapy.core.errors import UsageError
from llamapy.runtime.stop import StopMatcher, split_stops
from llamapy.runtime.stream import TextStream


def whole(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the first prefix that ends with a stop, without the longest such stop."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def streamed(pieces: list[str], stops: list[str]) -> tuple[str, str | None, list[str]]:
    matcher, shown = StopMatcher(stops), []
    for piece in pieces:
        emit, stopped = matcher.push(piece)
        shown.append(emit)
        if stopped:
            return "".join(shown), matcher.matched, shown
    shown.append(matcher.flush())
    return "".join(shown), matcher.matched, shown


def cut(text: str, rng: random.Random) -> list[str]:
    places = sorted(rng.randint(0, len(text)) for _ in range(rng.randint(0, len(text))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]


def test_streamed_text_equals_whole_text_for_a_thousand_cases() -> None:
    rng = random.Random(1)
    stopped = 0
    for _ in range(1000):
        alphabet = rng.choice(["ab", "abc", "aé\n", "<|end>"])
        text = "".join(rng.choices(alphabet, k=rng.randint(0, 30)))
        n_stops = rng.randint(0, 4)
        stops = ["".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(n_stops)]
        expected = whole(text, stops)
        assert streamed(cut(text, rng), stops)[:2] == expected
        assert streamed(list(text), stops)[:2] == expected
        assert streamed([text], stops)[:2] == expected
        stopped += expected[1] is not None
    assert 200 < stopped < 900  # both kinds were tried


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=5), max_size=3))
@example("xababac", ["abac"])  # the held text is the start of a later match
@example("abX", ["abc", "b"])  # a stop inside the possible start of another
def test_nothing_is_held_back_without_need(text: str, stops: list[str]) -> None:
    """After every character, what is not shown yet is a start of a stop, and the longest one."""
    matcher, shown = StopMatcher(stops), ""
    for i, character in enumerate(text):
        emit, ended = matcher.push(character)
        shown += emit
        if ended:
            break
        waiting = text[len(shown) : i + 1]
        ends = [text[i + 1 - n : i + 1] for n in range(1, i + 2)]
        starts = [len(end) for end in ends if any(stop.startswith(end) for stop in stops)]
        assert shown + waiting == text[: i + 1]
        assert len(waiting) == max(starts, default=0)


@pytest.mark.parametrize(
    ("pieces", "stops", "text", "stop"),
    [
        ([" O", " P", " Q", "R"], ["O P Q"], " ", "O P Q"),
        (["what", "?\n", "no"], ["\n"], "what?", "\n"),
        (["hi\n ", "Alice", ": x"], ["Alice:"], "hi\n ", "Alice:"),
        (["ab", "c"], ["abc", "ab"], "", "ab"),
        (["xab", "c"], ["bc", "abc"], "x", "abc"),
        (["aa", "b"], ["aab"], "", "aab"),
        (["aaa", "b"], ["aab"], "a", "aab"),
        (["sto", "re"], ["stop"], "store", None),
        (["one", "two"], [], "onetwo", None),
    ],
)
def test_cases_that_went_wrong_elsewhere(pieces: list, stops: list, text: str, stop: str) -> None:
    assert streamed(pieces, stops)[:2] == (text, stop)


def test_after_the_end_nothing_comes() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("axb") == ("a", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""
    with pytest.raises(UsageError, match="cannot be empty"):
        StopMatcher(["a", ""])


def test_control_tokens_stop_by_id() -> None:
    ids, texts = split_stops(["<|im_end|>", "\n", "<|im_end|>"], {"<|im_end|>": 2, "<s>": 1})
    assert ids == {2} and texts == ["\n"]


def run_stream(pieces: list[bytes], stops: tuple[str, ...] = ()) -> list[str]:
    stream, out = TextStream(stops), []
    for piece in pieces:
        text, stopped = stream.push(piece)
        out.append(text)
        if stopped:
            return out
    return [*out, stream.finish()]


@pytest.mark.parametrize("sizes", [(4,), (1, 3), (2, 2), (3, 1), (1, 1, 1, 1), (1, 2, 1)])
def test_an_emoji_over_several_tokens(sizes: tuple[int, ...]) -> None:
    raw, pieces = "😀".encode(), []
    for size in sizes:
        pieces.append(raw[:size])
        raw = raw[size:]
    out = run_stream([b" ", *pieces, b"!"])
    assert "".join(out) == " 😀!"
    assert out[len(pieces)] == "😀"  # with its last byte, not later


def test_a_cut_character_is_flushed_once() -> None:
    assert run_stream([b"a", "😀".encode()[:3]]) == ["a", "", "\ufffd"]


@given(st.lists(st.binary(max_size=5), max_size=12))
def test_pieces_join_to_the_whole_decoded(pieces: list[bytes]) -> None:
    assert "".join(run_stream(pieces)) == b"".join(pieces).decode(errors="replace")


@given(
    st.lists(st.sampled_from(["é", "😀", "stop", "s", "t", "\n"]), max_size=15), st.integers(1, 3)
)
def test_bytes_with_stops(words: list[str], size: int) -> None:
    raw, stops = "".join(words).encode(), ("stop", "é\n", "😀s")
    out = run_stream([raw[i : i + size] for i in range(0, len(raw), size)], stops)
    assert "".join(out) == whole(raw.decode(), list(stops))[0]


def test_raw_bytes_are_kept() -> None:
    stream = TextStream()
    stream.push(b"\xff\x00")
    stream.push("é".encode()[:1])
    assert bytes(stream.raw) == b"\xff\x00\xc3"
