"""Random texts of every kind for comparing tokenizers; the same seed gives the same texts."""

from __future__ import annotations

import random
from collections.abc import Sequence

WORDS = [
    "the",
    "of",
    "and",
    "Hello",
    "WORLD",
    "iPhone",
    "naïve",
    "café",
    "straße",
    "ﬁne",
    "don't",
    "I'll",
    "WE'RE",
    "they've",
    "it's",
    "'S",
    "'Ll",
    "x1",
    "abc123",
    "HTTPServer",
    "camelCase",
    "snake_case",
    "3.14",
    "1,234,567",
    "0xDEADBEEF",
    "100000000",
    "½",
    "²",
    "①Ⅷ",
    "٣٤٥",
    "१२३",
    "你好世界",
    "こんにちは",
    "カタカナ",
    "한국어",
    "русский",
    "ελληνικά",
    "עברית",
    "العربية",
    "हिन्दी",
    "ไทย",
    "ქართული",
    "İstanbul",
    "ǅ",
    "ʰ",
    "ﷺ",
]
CODE = [
    "def f(x):\n    return x+1\n",
    "if(a&&b",
    "",
    "!c){i++;}",
    "#include <stdio.h>\n",
    "\t\tfor i in x:\r\n",
    "https://a.b/c?d=e#f",
    "/* c */ // d",
    "\\n \\t",
    "a->b::c",
    "<sentinel:12>",
    "IMGIMGABCZ",
    "x == y != z <= 3",
]
EMOJI = ("😀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "1️⃣")
WHITE = [
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\t",
    "\t\t",
    "\xa0",
    "\u2003",
    "\u3000",
    "\u2028",
    "\x0b",
    "\x0c",
    "\x85",
    "\u200b",
    "\u1680",
    "     ",
    "\n \n",
    " \n",
    "\n\n\n\n",
]
CONTROL = [
    "\x00",
    "\x01",
    "\x1b[0m",
    "\x1c",
    "\x1f",
    "\x7f",
    "\x80",
    "\x9f",
    "\ufeff",
    "\u202e",
    "�",
    "\ue000",
    "\uffff",
]
MARKS = ["é", "ñ", "̀́̂", "ạ̈", "ำ", "ि", "⃝"]
SIGNS = [*"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", *"…—“”«»、。！؟।€™°±∑→▁", "▁▁"]
BROKEN = (
    b"\xff|\xfe\xff|\x80|\xc3|\xe4\xbd|\xf0\x9f\x98|\xc0\x80|\xed\xa0\x80|\xe0\x80\x80|\xbf\xbf"
    b"|\xc3\x28|\xf8\x88\x80\x80\x80|a\xcc"
).split(b"|")
KINDS = ("words", "code", "white", "any", "control", "marks", "emoji", "signs", "numbers")


def texts(seed: int, n: int, specials: Sequence[bytes] = ()) -> list[bytes]:
    """`n` texts, some with wrong UTF-8 or with some of `specials` in them."""
    draw = random.Random(seed)
    return [_text(draw, specials) for _ in range(n)]


def _text(draw: random.Random, specials: Sequence[bytes]) -> bytes:
    n_parts = draw.choice([1, 1, 2, 3, 5, 8, 13, 30])
    kind = draw.choice(["", "", "", *KINDS, "broken", "special"])
    rare = ["broken"] * (draw.random() < 0.3) + ["special"] * (draw.random() < 0.5)
    return b"".join(
        _part(draw, kind or draw.choice([*KINDS, *rare]), specials) for _ in range(n_parts)
    )


def _part(draw: random.Random, kind: str, specials: Sequence[bytes]) -> bytes:
    if kind == "broken":
        return draw.choice(BROKEN) + draw.choice([b"", b"a", b" "])
    if kind == "special":
        return draw.choice(specials or [b"<s>"]) + draw.choice([b"", b" ", b"x", b"\n"])
    return _characters(draw, kind).encode("utf-8", "surrogatepass")


def _characters(draw: random.Random, kind: str) -> str:
    if kind == "any":
        return "".join(_any(draw) for _ in range(draw.randrange(1, 6)))
    if kind == "numbers":
        digits = "".join(draw.choice("0123456789") for _ in range(draw.randrange(1, 12)))
        return digits + draw.choice(["", " ", ",", "."])
    sets = {
        "words": WORDS,
        "code": CODE,
        "white": WHITE,
        "control": CONTROL,
        "marks": MARKS,
        "emoji": EMOJI,
        "signs": SIGNS,
    }
    chosen = draw.choice(list(sets[kind]))
    if kind == "words":
        return chosen + draw.choice(["", "", " "])
    return chosen * draw.choice([1, 1, 1, 2, 4]) if kind in ("white", "signs") else chosen


def _any(draw: random.Random) -> str:
    """A code point that is no surrogate, most of them low ones."""
    code = draw.randrange(draw.choice([0x80, 0x250, 0x3000, 0x10000, 0x20000, 0x110000]))
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ud7ff"
