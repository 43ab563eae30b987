"""Which architecture file serves a Hugging Face class: each file says its classes in HF."""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

from llamapy.core import discover
from llamapy.core.errors import ModelError

PACKAGE = "llamapy.archs"


@cache
def by_class() -> dict[str, ModuleType]:
    """{Hugging Face class: architecture file}."""
    found: dict[str, ModuleType] = {}
    for module in discover.load_all(PACKAGE).values():
        for name in getattr(module, "HF", ()):
            found[name] = module
    return found


def find(hf_class: str, where: str) -> tuple[ModuleType, str]:
    """The file that serves a class, and its name in GGUF. ModelError names the nearest classes."""
    found = _by_text(hf_class) or by_class().get(hf_class)
    if found is None:
        near = difflib.get_close_matches(hf_class, by_class(), 3, 0.6)
        known = ", ".join(near or sorted(by_class()))
        raise ModelError(
            f"{where}: {hf_class} is not supported",
            hint=f"{'near to it' if near else 'supported'}: {known}",
        )
    return found, found.__name__.rpartition(".")[2].replace("_", "-")


def _by_text(hf_class: str) -> ModuleType | None:
    """The file that serves a class, if that is to be seen without importing all of them."""
    folders: list[str] = list(importlib.import_module(PACKAGE).__path__)
    for name in discover.names(PACKAGE):
        files = (Path(folder, f"{name}.py") for folder in folders)
        text = next((f.read_text(encoding="utf-8") for f in files if f.is_file()), "")
        if f'"{hf_class}"' in text:
            module = discover.load(PACKAGE, name)
            if hf_class in getattr(module, "HF", ()):
                return module
    return None
