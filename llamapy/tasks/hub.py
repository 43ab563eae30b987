"""Models from the Hugging Face hub, through its own library: `pip install 'llamapy[hub]'`.

Which GGUF file of a repository is meant follows llama.cpp (common/download.cpp). Without a
connection, what an earlier call has fetched is used. Knows nothing of what is in the files.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from llamapy.core.errors import FetchError, UsageError

CONVERTED = ["*.json", "*.md", "*.txt", "*.jinja", "*.model", "model*.safetensors", "1_Pooling/*"]
EXTRA = "pip install 'llamapy[hub]'"
USUAL = ("Q4_K_M", "Q8_0")  # the types that are taken if none is named, in this order

_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_PART = re.compile(r"(?P<prefix>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf$")
_ITS_ERRORS = ("huggingface_hub", "httpx", "requests", "urllib3")  # packages, by release
_T = TypeVar("_T")


def folder(given: str, repo: str) -> str:
    """The folder of a model: the one that is given, or that of a repository of the hub."""
    if bool(given) == bool(repo):
        raise UsageError("give either a folder or -hf USER/REPO")
    return snapshot(repo, CONVERTED) if repo else given


def snapshot(repo: str, patterns: list[str]) -> str:
    """Fetch a repository's files that match; the folder that they are in. Else FetchError."""
    hub = _library()
    return str(_asked(repo, lambda: hub.snapshot_download(repo, allow_patterns=patterns)))


def file(repo: str) -> Path:
    """Fetch a GGUF model of a repository; its path, of a set that of the first part.

    repo  USER/REPO or USER/REPO:TYPE. FetchError lists what there is if no file has that type.
    """
    name, _, wanted = repo.partition(":")
    hub = _library()
    files, offline = _listed(hub, name)
    chosen = choose(files, wanted)
    if chosen is None:
        models = [one for one in files if is_model(one)]
        what = f"no GGUF file of type {wanted}" if wanted and models else "no GGUF model"
        hint = f"there are {', '.join(models[:20])}" if models else f"llamapy convert -hf {name}"
        raise FetchError(f"{name} has {what}", hint=hint)
    fetch = partial(hub.hf_hub_download, name, local_files_only=offline)
    return [Path(_asked(name, partial(fetch, one))) for one in parts(files, chosen)][0]


def choose(files: Sequence[str], wanted: str = "") -> str | None:
    """The model that is meant: of the wanted type, else of a usual one, else the first; or None."""
    models = [one for one in files if is_model(one) and _index(one) == 1]
    for kind in [wanted] if wanted else USUAL:
        pattern = re.compile(re.escape(kind) + "[.-]", re.IGNORECASE)
        found = next((one for one in models if pattern.search(one)), None)
        if found is not None:
            return found
    return models[0] if models and not wanted else None


def is_model(path: str) -> bool:
    """Whether a file of a repository is a GGUF model, and not something that goes with one."""
    name = path.rpartition("/")[2]
    return name.endswith(".gguf") and not any(word in name for word in _NO_MODEL)


def parts(files: Sequence[str], first: str) -> list[str]:
    """All parts of the set that a file begins, or the file alone. FetchError if one is missing."""
    match = _PART.match(first)
    if match is None:
        return [first]
    prefix, count = match["prefix"], int(match["count"])
    wanted = [f"{prefix}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    missing = [one for one in wanted if one not in files]
    if missing:
        raise FetchError(f"{len(missing)} of {count} parts are missing: {', '.join(missing[:3])}")
    return wanted


def _index(path: str) -> int:
    match = _PART.match(path)
    return int(match["index"]) if match else 1


def _library() -> Any:
    try:
        import huggingface_hub
        from huggingface_hub.utils.tqdm import disable_progress_bars
    except ImportError:
        raise FetchError("-hf needs the package huggingface_hub", hint=EXTRA) from None
    if not (sys.stderr and sys.stderr.isatty()):
        disable_progress_bars()
    return huggingface_hub


def _listed(hub: Any, repo: str) -> tuple[list[str], bool]:
    """Paths of a repository's files, and whether they are those that are here already, as there is
    no connection."""
    try:
        siblings = _asked(repo, lambda: hub.model_info(repo)).siblings or []
        return [one.rfilename for one in siblings], False
    except FetchError as error:
        try:
            root = Path(hub.snapshot_download(repo, local_files_only=True))
        except (OSError, ValueError):
            raise error from None
        return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()), True


def _asked(repo: str, call: Callable[[], _T]) -> _T:
    """What the hub's library says. FetchError for its errors and those of the connection."""
    try:
        return call()
    except Exception as error:
        packages = {base.__module__.partition(".")[0].rstrip("2") for base in type(error).__mro__}
        if not isinstance(error, OSError | ValueError) and packages.isdisjoint(_ITS_ERRORS):
            raise
        reason = next((line for line in str(error).splitlines() if line.strip()), "no reason given")
        hint = "is the name right, and is there a connection?"
        raise FetchError(f"{repo}: {reason.strip()}", hint=hint) from None
