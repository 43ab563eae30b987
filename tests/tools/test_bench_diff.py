"""tools/bench_diff.py: changes of the ratio to the peer."""

from __future__ import annotations

import json
from pathlib import Path

import bench_diff
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


def test_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old, new = write(tmp_path / "a", 1, 1), write(tmp_path / "b", 1, 1, "other")
    bench_diff.main([old, new])
    assert capsys.readouterr().out.count("only in one of them") == 4
    (tmp_path / "c").write_text("{}")
    with pytest.raises(SystemExit, match="not a file of `make bench`"):
        bench_diff.main([old, str(tmp_path / "c")])
