"""Which architecture file serves a Hugging Face class: each file says its classes in HF."""

from __future__ import annotations

import difflib
from functools import cache
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
    found = by_class().get(hf_class)
    if found is None:
        near = difflib.get_close_matches(hf_class, by_class(), 3, 0.6)
        known = ", ".join(near or sorted(by_class()))
        raise ModelError(
            f"{where}: {hf_class} is not supported",
            hint=f"{'near to it' if near else 'supported'}: {known}",
        )
    return found, found.__name__.rpartition(".")[2].replace("_", "-")
