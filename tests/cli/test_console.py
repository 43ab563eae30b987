"""The console: strict JSON, tables that keep what files say, silence away from a terminal."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llamapy.cli import console


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: int
    y: float


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def printed(obj: object, capsys: pytest.CaptureFixture[str]) -> object:
    """What a strict reader makes of `console.json(obj)`."""
    console.json(obj)
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (math.nan, "NaN"),
        ([math.inf, -math.inf, 1.5], ["Infinity", "-Infinity", 1.5]),
        (b"caf\xc3\xa9 \xff", "café \\xff"),
        ("\udcff", "\\udcff"),
        (2**64 - 1, 2**64 - 1),
        (np.float32(0.5), 0.5),
        (np.array([[1, 2], [3, 4]], np.uint8), [[1, 2], [3, 4]]),
        (np.array([math.nan]), ["NaN"]),
        (np.bool_(True), True),
        (Point(1, math.nan), {"x": 1, "y": "NaN"}),
        (Path("a/b"), "a/b"),
        (Colour.RED, "red"),
        ({1: None, "k": {2, 1}}, {"1": None, "k": [1, 2]}),
        ((i for i in "ab"), ["a", "b"]),
        (True, True),
    ],
)
def test_json_has_a_form_for(
    given_: object, expected: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(given_, capsys) == expected


def test_json_refuses_what_has_no_form() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        console.json({"x": object()})


texts = st.text(st.characters(exclude_categories=["Cs"]))
numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
plain = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=10,
)


@given(plain)
def test_json_keeps_what_json_can_say(value: object) -> None:
    assert json.loads(json.dumps(console._plain(value), allow_nan=False)) == value


def test_a_table_shows_texts_as_they_are(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "from llamapy.cli import console\n"
        "console.table('t', ['name', 'n'], [('[red]x :smile: \\x1b[31m', 5), ('y' * 300, 10)],"
        " numbers=['n'])"
    )
    environment = {k: v for k, v in os.environ.items() if k != "COLUMNS"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    lines = capfd.readouterr().out.splitlines()
    assert "[red]x :smile: \\x1b[31m" in lines[2]
    assert "y" * 300 in lines[3]
    assert [line.rstrip()[-2:] for line in lines[2:4]] == [" 5", "10"]


def test_talk_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "from llamapy.cli import console\n"
        "console.note('a [b]c\\x07'); console.warn('w'); console.warn('x ' * 200)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines()[:2] == ["a [b]c\\x07", "warning: w"]
    assert len(err.splitlines()) == 3


def test_progress_is_silent_away_from_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with console.progress("working", 10) as tick:
        tick(5)
        tick(10, 10)
    assert capfd.readouterr() == ("", "")


PROGRESS = """
from llamapy.cli import console
with console.progress("fetching [b]", unit="B") as tick:
    if {ticks}: tick(5_000_000, 10_000_000); tick(10_000_000, 10_000_000)
print("data")
"""


@pytest.mark.parametrize("ticks", [True, False])
def test_progress_draws_on_a_terminal_once_there_is_some(ticks: bool) -> None:
    main, side = pty.openpty()
    command = [sys.executable, "-c", PROGRESS.format(ticks=ticks)]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=side, check=True, env=environment)
    os.close(side)
    drawn = b""
    try:
        while more := os.read(main, 65536):
            drawn += more
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(main)
    assert done.stdout == b"data\n"
    assert (b"fetching [b]" in drawn) == ticks
    assert (b"10.0/10.0 MB" in drawn) == ticks
