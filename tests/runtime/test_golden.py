"""Greedy text of a real model is what was recorded for this SIMD level, whatever the number of
threads; and it is
the peer's text for as long as rounding does not tip a choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import record_golden

from llamapy.native.simd.levels import available

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "golden" / "smollm2.json").read_text()
)


@pytest.mark.model
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("level", available())
def test_golden_text(level: str, threads: int, smollm2: Path) -> None:
    if level not in GOLDEN:
        pytest.skip(
            f"no golden text has been recorded at level {level}: run tools/record_golden.py"
        )
    if level == "generic" and threads == 1:
        pytest.skip("the slowest level is run with two threads only")
    assert record_golden.at_level(level, threads) == [entry["ids"] for entry in GOLDEN[level]]


@pytest.mark.model
@pytest.mark.peer
def test_golden_text_starts_as_the_peers(peer: Any, smollm2: Path) -> None:
    with peer.open(smollm2) as model, model.context(n_ctx=512) as context:
        for entry in GOLDEN["avx2"]:
            prompt = model.tokenize(entry["prompt"].encode(), add_special=True, parse_special=True)
            theirs = context.greedy(prompt, 12)
            assert entry["ids"][: len(theirs)] == theirs
