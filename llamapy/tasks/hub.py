"""Models from the Hugging Face hub, through its own library: `pip install 'llamapy[hub]'`."""

from __future__ import annotations

from llamapy.core.errors import FetchError, LlamapyError, UsageError

CONVERTED = ["*.json", "*.md", "*.txt", "*.jinja", "*.model", "model*.safetensors", "1_Pooling/*"]
EXTRA = "pip install 'llamapy[hub]'"


def folder(given: str, repo: str) -> str:
    """The folder of a model: the one that is given, or that of a repository of the hub."""
    if bool(given) == bool(repo):
        raise UsageError("give either a folder or -hf USER/REPO")
    return snapshot(repo, CONVERTED) if repo else given


def snapshot(repo: str, patterns: list[str]) -> str:
    """Fetch a repository's files that match; the folder that they are in."""
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError:
        raise FetchError("-hf needs the package huggingface_hub", hint=EXTRA) from None
    try:
        return str(snapshot_download(repo, allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise _fetch_error(repo, error) from None


def file(repo: str) -> str:
    """Path of a GGUF file of a repository: USER/REPO or USER/REPO:TYPE (by default Q4_K_M, else the
    first there is); of a set the first part, the others beside it."""
    name, _, wanted = repo.partition(":")
    root = snapshot(name, [f"*{wanted}*.gguf"] if wanted else ["*.gguf"])
    from pathlib import Path

    found = sorted(str(path) for path in Path(root).rglob("*.gguf"))
    if not found:
        raise FetchError(f"{name} has no GGUF file{f' of {wanted}' if wanted else ''}")
    return next((path for path in found if "q4_k_m" in path.lower()), found[0])


def _fetch_error(repo: str, error: Exception) -> LlamapyError:
    reason = (str(error).strip().splitlines() or ["no reason given"])[0]
    return FetchError(f"{repo}: {reason}", hint="is the name right, and is there a connection?")
