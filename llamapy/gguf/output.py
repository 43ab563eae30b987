"""Files that appear only when they are complete: written in the same folder, synced, then renamed.

An output is never an input (through links either); room on the disk is checked before the start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import BinaryIO

from llamapy.core.errors import OutputError

Path = str | PathLike[str]

_fdatasync = getattr(os, "fdatasync", os.fsync)  # macOS has only the latter

_BUFFER = 1 << 20
_LARGE = 64 << 20  # bytes from which on a file is synced while it is written
_SYNC_EVERY_S = 0.05


class PendingFiles:
    """Output files that all appear together at the end of a `with` block, or not at all.

    targets    path and exact size in bytes of every file; all in existing folders
    inputs     files that must survive: a target that is one of them is refused
    overwrite  whether a target may exist already

    OutputError if a target cannot be written. Whatever ends the block early (Ctrl-C too) leaves
    nothing behind and existing targets as they were.
    """

    def __init__(
        self,
        targets: Sequence[tuple[Path, int]],
        *,
        inputs: Iterable[Path] = (),
        overwrite: bool = True,
    ) -> None:
        self._sizes = [n_bytes for _, n_bytes in targets]
        self._temporary: dict[str, str] = {}  # target -> the file that will take its name
        kept = list(inputs)
        self.targets = [_checked(path, kept, overwrite) for path, _ in targets]

    def __enter__(self) -> PendingFiles:
        needed: dict[str, int] = {}
        for path, n_bytes in zip(self.targets, self._sizes):
            folder = os.path.dirname(path)
            needed[folder] = needed.get(folder, 0) + n_bytes
        for folder, n_bytes in needed.items():
            _check_space(folder, n_bytes)
        return self

    @contextlib.contextmanager
    def open(self, index: int) -> Iterator[BinaryIO]:
        """The index-th target for writing; synced to the disk when the block ends."""
        path = self.targets[index]
        name = f".llamapy-{os.urandom(8).hex()}.tmp"
        temporary = os.path.join(os.path.dirname(path), name)
        self._temporary[path] = temporary
        try:
            handle, named = _create(temporary)
            with open(handle, "wb", buffering=_BUFFER) as file:
                with _synced_meanwhile(handle, self._sizes[index]):
                    yield file
                    file.flush()
                os.fsync(handle)
                if not named:  # src_dir_fd makes Python follow the link in /proc
                    os.link(f"/proc/self/fd/{handle}", temporary, src_dir_fd=handle)
        except OSError as error:
            if error.errno in (None, errno.ENOMEM):  # of whoever makes the data, not of the file
                raise
            raise self._write_error(index, error) from error

    def _write_error(self, index: int, error: OSError) -> OutputError:
        path = self.targets[index]
        message = f"{path}: cannot be written: {error.strerror or error}"
        with contextlib.suppress(OSError):
            free = shutil.disk_usage(os.path.dirname(path)).free
            message += f" (needs {self._sizes[index]} bytes, {free} bytes free)"
        return OutputError(message)

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._publish()
        finally:
            for temporary in self._temporary.values():
                with contextlib.suppress(OSError):
                    os.unlink(temporary)

    def _publish(self) -> None:
        for path, temporary in list(self._temporary.items()):
            try:
                os.replace(temporary, path)
            except OSError as error:
                raise OutputError(f"{path}: cannot be written: {error.strerror}") from error
            del self._temporary[path]
        for folder in {os.path.dirname(path) for path in self.targets}:
            _sync_folder(folder)


@contextlib.contextmanager
def _synced_meanwhile(handle: int, n_bytes: int) -> Iterator[None]:
    """Bring a large file to the disk while it is written, so that little is left for the end."""
    if n_bytes < _LARGE:
        yield
        return
    ended, errors = threading.Event(), []

    def sync() -> None:
        while not ended.wait(_SYNC_EVERY_S):
            try:
                _fdatasync(handle)
            except OSError as error:  # told only once, so it must not be lost
                errors.append(error)
                return

    thread = threading.Thread(target=sync, name="llamapy-sync", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def _create(path: str) -> tuple[int, bool]:
    """A descriptor of a new file for `path`, and whether it has that name already.

    Where the system can, the name comes last: then not even a killed process leaves anything.
    """
    nameless = getattr(os, "O_TMPFILE", 0)
    if nameless and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # not every file system has such files
            return os.open(os.path.dirname(path), os.O_WRONLY | nameless, 0o666), False
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), True


def _checked(path: Path, inputs: Sequence[Path], overwrite: bool) -> str:
    """The real path of a target, or OutputError if nothing may be written there."""
    given = os.fspath(path)
    for other in inputs:
        if _same(given, other):
            raise OutputError(
                f"{given}: is the input {os.fspath(other)} itself",
                hint="choose another name for the output",
            )
    real = os.path.realpath(given)
    folder = os.path.dirname(real)
    if not os.path.isdir(folder):
        raise OutputError(f"{given}: the folder {folder} does not exist", hint="create it first")
    mode = _mode(given, real)
    if mode and not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise OutputError(f"{given}: is {what}")
    if mode and not overwrite:
        raise OutputError(f"{given}: exists already", hint="--force replaces it")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{given}: no permission to write in {folder}")
    return real


def _mode(given: str, real: str) -> int:
    """Mode of the file at `real`, 0 if there is none."""
    try:
        return os.stat(real).st_mode
    except FileNotFoundError:
        return 0
    except OSError as error:  # a name that is too long, a loop of links
        raise OutputError(f"{given}: cannot be written: {error.strerror}") from None


def _same(a: Path, b: Path) -> bool:
    """Whether both names lead to one file, through links of either kind."""
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.realpath(a) == os.path.realpath(b)


def _check_space(folder: str, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OutputError(
            f"{folder}: not enough space: needs {needed} bytes, {free} bytes free",
            hint="free some space or write elsewhere",
        )


def _sync_folder(folder: str) -> None:
    """Make the new names durable, where the system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
