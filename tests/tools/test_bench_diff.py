"""tools/bench_diff.py: changes of the ratio to the peer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import bench_diff
import compare_speed
import pytest


def write(path: Path, ours: float, peer: float, model: str = "m.gguf") -> str:
    row = {
        "model": model,
        "n": {"pp": 512, "tg": 64},
        "ours": {"pp": ours, "tg": 2.0},
        "peer": {"pp": peer, "tg": 2.0},
    }
    path.write_text(json.dumps({"figures": {"rows": [row]}}))
    return str(path)


def test_ratios_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "a", 100, 50), write(tmp_path / "b", 90, 30)
    assert bench_diff.main([old, new]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["m.gguf", "pp512", "100.0", "90.0", "2.00", "3.00", "+50.0", "%"]
    assert out[2].split()[-2:] == ["+0.0", "%"]


class Counting:
    """An engine that does nothing."""

    def clear(self) -> None: ...
    def prefill(self, tokens: list[int], start: int) -> None: ...
    def back(self, n: int) -> None: ...
    def step(self, tokens: list[int], position: int) -> None: ...


def test_what_the_comparison_writes_is_read(tmp_path: Path) -> None:
    wanted = argparse.Namespace(p=4, n=2, b=[1, 2], d=0, r=1)
    engines: dict[str, compare_speed.Engine] = {"ours": Counting(), "peer": Counting()}
    row = compare_speed.row_of("m.gguf", compare_speed.in_turns(engines, [0] * 8, wanted))
    (tmp_path / "a").write_text(json.dumps({"figures": {"rows": [row]}}))
    found = bench_diff.figures(tmp_path / "a")
    assert list(found) == [("m.gguf", test) for test in ("pp4", "tg2", "tg2x2")]
    ours, ratio = found["m.gguf", "tg2"]
    assert (ours, ratio) == (row["ours"]["tg2"], row["ours"]["tg2"] / row["peer"]["tg2"])


def test_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "a", 1, 1), write(tmp_path / "b", 1, 1, "other")
    bench_diff.main([old, new])
    assert capsys.readouterr().out.count("only in one of them") == 4
    (tmp_path / "c").write_text("{}")
    with pytest.raises(SystemExit, match="not a file of `make bench`"):
        bench_diff.main([old, str(tmp_path / "c")])
