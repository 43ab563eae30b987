"""The file types that `quantize` makes: names, numbers, the tensor type each is built on.

Names, numbers and notes are llama-quantize's (tools/quantize/quantize.cpp, include/llama.h). Which
tensor of a file gets another type than the base is in mixes.py.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from llamapy.core.errors import UsageError
from llamapy.quants import codec


@dataclass(frozen=True, slots=True)
class FileType:
    """One file type. `base`: the tensor type's name; `id`: the value of general.file_type."""

    name: str
    id: int
    base: str
    note: str

    @property
    def copies(self) -> bool:
        """Whether tensors are only copied."""
        return self.name == "COPY"


# name, id, base, bits per weight or size and loss of perplexity of Llama-3-8B
_TABLE = """
Q1_0      40 q1_0    1.125 bpw
Q2_0      41 q2_0    2.25 bpw, groups of 64
IQ1_S     24 iq1_s   1.56 bpw
IQ1_M     31 iq1_m   1.75 bpw
TQ1_0     36 tq1_0   1.69 bpw, ternary
TQ2_0     37 tq2_0   2.06 bpw, ternary
IQ2_XXS   19 iq2_xxs 2.06 bpw
IQ2_XS    20 iq2_xs  2.31 bpw
IQ2_S     28 iq2_xs  2.5 bpw, mix
IQ2_M     29 iq2_s   2.7 bpw, mix
Q2_K      10 q2_K    2.96G, +3.5199 ppl
Q2_K_S    21 q2_K    2.96G, +3.1836 ppl
IQ3_XXS   23 iq3_xxs 3.06 bpw
IQ3_XS    22 iq3_s   3.3 bpw, mix
IQ3_S     26 iq3_s   3.44 bpw
IQ3_M     27 iq3_s   3.66 bpw, mix
Q3_K_S    11 q3_K    3.41G, +1.6321 ppl
Q3_K_M    12 q3_K    3.74G, +0.6569 ppl
Q3_K_L    13 q3_K    4.03G, +0.5562 ppl
IQ4_XS    30 iq4_xs  4.25 bpw
IQ4_NL    25 iq4_nl  4.50 bpw
MXFP4_MOE 38 mxfp4   experts in MXFP4, the rest in Q8_0
Q4_0       2 q4_0    4.34G, +0.4685 ppl
Q4_1       3 q4_1    4.78G, +0.4511 ppl
Q4_K_S    14 q4_K    4.37G, +0.2689 ppl
Q4_K_M    15 q4_K    4.58G, +0.1754 ppl
Q5_0       8 q5_0    5.21G, +0.1316 ppl
Q5_1       9 q5_1    5.65G, +0.1062 ppl
Q5_K_S    16 q5_K    5.21G, +0.1049 ppl
Q5_K_M    17 q5_K    5.33G, +0.0569 ppl
Q6_K      18 q6_K    6.14G, +0.0217 ppl
Q8_0       7 q8_0    7.96G, +0.0026 ppl
F16        1 f16     14.00G, +0.0020 ppl of Mistral-7B
BF16      32 bf16    14.00G, -0.0050 ppl of Mistral-7B
F32        0 f32     26.00G of a 7B model
"""


def _parse(line: str) -> FileType:
    name, number, base, note = line.split(None, 3)
    return FileType(name, int(number), base, note)


COPY = FileType("COPY", 0, "f32", "tensors as they are")
FILE_TYPES = tuple(_parse(line) for line in _TABLE.strip().splitlines())
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}

GUESSED = 1024  # llama.cpp adds it to a file type that it read off the tensors
_GUESSES = {
    "f16": 1,
    "bf16": 32,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 8,
    "q5_1": 9,
    "q8_0": 7,
    "q2_K": 10,
    "q3_K": 12,
    "q4_K": 15,
    "q5_K": 17,
    "q6_K": 18,
    "tq1_0": 36,
    "tq2_0": 37,
    "iq2_xxs": 19,
    "iq2_xs": 20,
    "iq2_s": 28,
    "iq3_xxs": 23,
    "iq1_s": 24,
    "iq1_m": 31,
    "iq4_nl": 25,
    "iq4_xs": 30,
    "iq3_s": 26,
    "nvfp4": 39,
    "q1_0": 40,
    "q2_0": 41,
}


def find(text: str) -> FileType | None:
    """The file type of this name (in any case), alias or number; None if there is none."""
    wanted = text.strip().upper()
    wanted = ALIASES.get(wanted, wanted)
    if wanted == COPY.name:
        return COPY
    for one in FILE_TYPES:
        if wanted in (one.name, str(one.id)):
            return one
    return None


def parse(text: str) -> FileType:
    """The file type of this name or number. UsageError names the nearest."""
    found = find(text)
    if found is not None:
        return found
    names = [one.name for one in FILE_TYPES] + [COPY.name, *ALIASES]
    near = difflib.get_close_matches(text.strip().upper(), names, 4, 0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(names)}"
    raise UsageError(f"unknown file type {text!r}", hint=hint)


def guess(type_ids: Iterable[int]) -> int:
    """The number llama.cpp gives a file that does not say its type: that of most tensors.

    Of types with as many tensors, the one that had so many first (in the order of `type_ids`).
    """
    counts: Counter[int] = Counter()
    most, winner = 0, 0
    for type_id in type_ids:
        counts[type_id] += 1
        if counts[type_id] > most:
            most, winner = counts[type_id], type_id
    return _GUESSES.get(codec.get(winner).name, 0) | GUESSED
