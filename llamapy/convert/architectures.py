"""Which architecture file serves a Hugging Face class: each file says its classes in HF."""

from __future__ import annotations

import difflib
import importlib
import re
from functools import cache
from pathlib import Path
from types import ModuleType

from llamapy.core import discover
from llamapy.core.errors import ModelError
from llamapy.gguf.limits import shown

PACKAGE = "llamapy.archs"
_ENDING = r"(For\w+|LMHead\w+|Model)$"


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
        near = _near(hf_class)
        known = near or [_name(module) for module in discover.load_all(PACKAGE).values()]
        raise ModelError(
            f"{where}: models of class {shown(hf_class)} are not supported",
            hint=f"{'near to it' if near else 'supported'}: {', '.join(known)}",
        )
    return found, _name(found)


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2].replace("_", "-")


def _near(hf_class: str) -> list[str]:
    """Known classes of which this may be a misspelling; what all of them end with says nothing."""
    stems = {name: re.sub(_ENDING, "", name) for name in by_class()}
    found = difflib.get_close_matches(re.sub(_ENDING, "", hf_class), set(stems.values()), 3, 0.75)
    return sorted(name for name, stem in stems.items() if stem in found)


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
