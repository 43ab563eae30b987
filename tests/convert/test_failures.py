"""Whatever ends a conversion early leaves no file: one or several, in any type."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from llamapy.convert.plan import Tensor
from llamapy.core.errors import QuantError
from llamapy.tasks import convert_data
from tests.convert.folders import blow_up

RUN = "import resource, sys; from llamapy.cli.main import run; "
INTERRUPTED = """
import os, signal, time
from llamapy.tasks import convert_data
encoded, calls = convert_data.encoded, []
def interrupted(*arguments):
    calls.append(1)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
    return encoded(*arguments)
convert_data.encoded = interrupted
"""
WAYS = {
    "f16": ["--outtype", "f16"],
    "q4_k_m": ["--outtype", "q4_k_m"],
    "parts": ["--outtype", "f16", "--split-max-tensors", "6"],
}


@pytest.fixture
def folder(llama: Path) -> Path:
    """A Llama with rows of 256, as K types need them."""
    blow_up(llama, 256, 512, 2)
    return llama


def process(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{code}\nsys.exit(run(sys.argv[1:]))", "convert"]
    return subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("way", WAYS)
def test_interrupted(way: str, folder: Path) -> None:
    done = process(RUN + INTERRUPTED, folder, "-o", folder.parent / "out.gguf", *WAYS[way])
    assert (done.returncode, done.stderr.splitlines()[-1:]) == (130, ["llamapy: interrupted"])
    assert os.listdir(folder.parent) == ["llama"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of Linux")
@pytest.mark.parametrize("way", WAYS)
def test_no_room_for_the_last_byte(way: str, folder: Path) -> None:
    """The largest file is one byte too long for the system; others may be written by then."""
    out = folder.parent / "out.gguf"
    assert process(RUN, folder, "-o", out, *WAYS[way]).returncode == 0
    made = sorted(set(folder.parent.iterdir()) - {folder})
    assert len(made) == (4 if way == "parts" else 1)
    limit = max(path.stat().st_size for path in made) - 1
    for path in made:
        path.unlink()
    limited = RUN + f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    done = process(limited, folder, "-o", out, *WAYS[way])
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert os.listdir(folder.parent) == ["llama"]


@pytest.mark.parametrize("way", ["f16", "parts"])
def test_names_that_are_taken(way: str, folder: Path) -> None:
    """Nothing is replaced without --force, be it one part of several."""
    name = "out-00003-of-00004.gguf" if way == "parts" else "out.gguf"
    (folder.parent / name).write_bytes(b"mine")
    done = process(RUN, folder, "-o", folder.parent / "out.gguf", *WAYS[way])
    assert done.returncode == 1 and "exists" in done.stderr
    assert sorted(os.listdir(folder.parent)) == sorted(["llama", name])
    assert (folder.parent / name).read_bytes() == b"mine"


def made_of(values: np.ndarray, kind: str = "F32") -> Tensor:
    return Tensor("x.weight", values.shape[::-1], kind, lambda: iter(np.split(values, 4)))


def told() -> None:
    """Nobody listens."""


def test_data_come_in_order() -> None:
    values = np.arange(64, dtype=np.float32).reshape(16, 4)
    tensors = [made_of(values), Tensor("y", (4,), "F32", lambda: iter([values[:1]]))]
    with convert_data.Data(tensors, {"x.weight": "f16", "y": "f32"}, 1, told) as data:
        assert np.array_equal(np.concatenate(list(data.of("x.weight"))), values)
        assert np.array_equal(np.concatenate(list(data.of("y"))), values[:1])
        assert list(data.of("z")) == []


def test_data_that_fail() -> None:
    """The error arrives where the data are asked for, and no thread is left behind."""

    def broken() -> Iterator[np.ndarray]:
        yield np.ones((1, 32), np.float32)
        yield np.full((1, 32), np.nan, np.float32)

    before = set(threading.enumerate())
    one = Tensor("x", (32, 2), "F32", broken)
    with (
        convert_data.Data([one], {"x": "q8_0"}, 1, told) as data,
        pytest.raises(QuantError, match="'x'"),
    ):
        list(data.of("x"))
    with convert_data.Data([made_of(np.ones((16, 4), "f4"))], {"x.weight": "f32"}, 1, told) as data:
        next(data.of("x.weight"))
    assert set(threading.enumerate()) == before


def test_halves_by_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bits of numpy's cast, NaN included; and only where there is much to cast."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, (8, 1003), np.uint32)
    bits[1] = np.arange(1003, dtype=np.uint32) * 70_001 + 0x38000000  # halves, small and normal
    values = bits.view(np.float32)
    few, kinds = [made_of(values)], {"x.weight": "f16"}
    assert convert_data.cast_for(few, kinds) is convert_data.halves.of_singles
    monkeypatch.setattr(convert_data, "COMPILED_FROM", 1)
    monkeypatch.setattr(convert_data, "_has_room", lambda: True)
    cast = convert_data.cast_for(few, kinds)
    assert cast is not convert_data.halves.of_singles
    with np.errstate(all="ignore"):
        for rows in (values, values[1:2], values[:, ::3]):
            assert cast(rows).tobytes() == rows.astype(np.float16).tobytes()
    assert convert_data.cast_for(few, {"x.weight": "f32"}) is convert_data.halves.of_singles
    assert convert_data.cast_for([made_of(values, "BF16")], kinds) is convert_data.halves.of_singles
