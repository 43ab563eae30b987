#!/usr/bin/env python3
"""Write llamapy/tokenizers/unicode.npz: the character tables that llama.cpp's tokenizers use.

    python tools/record_unicode.py path/to/llama.cpp/src/unicode-data.cpp

The tables must be llama.cpp's own: its Unicode version decides ids, not Python's. Arrays:
    starts u32, flags u8    code points from starts[i] up to starts[i + 1] have category flags[i]
    white u32               white space
    lower u32 [n, 2]        code point -> its lower case
    nfd u32 [n, 3]          first, last, first code point of the canonical decomposition
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parent.parent / "llamapy" / "tokenizers" / "unicode.npz"


def table(source: str, name: str) -> np.ndarray:
    """The numbers of one C++ initializer, shape [n, columns]."""
    body = re.search(rf"{name} = \{{(.*?)^\}};", source, re.S | re.M)
    if body is None:
        raise SystemExit(f"no table {name} in this file")
    rows = [re.findall("0x[0-9A-Fa-f]+", line) for line in body[1].splitlines()]
    return np.array([[int(number, 16) for number in row] for row in rows if row], np.uint32)


def main() -> None:
    source = Path(sys.argv[1]).read_text(encoding="utf-8")
    ranges = table(source, "unicode_ranges_flags")
    np.savez_compressed(
        TARGET,
        starts=ranges[:, 0],
        flags=ranges[:, 1].astype(np.uint8),
        white=np.sort(table(source, "unicode_set_whitespace")[:, 0]),
        lower=table(source, "unicode_map_lowercase"),
        nfd=table(source, "unicode_ranges_nfd"),
    )
    print(f"{TARGET}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
