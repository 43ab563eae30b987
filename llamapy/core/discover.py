"""Files are the registry: list and load the modules of a package by their file names."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from types import ModuleType


def names(package: str) -> list[str]:
    """Names of the modules in `package` (a dotted name), sorted, without those in `_`."""
    path = importlib.import_module(package).__path__
    return sorted(m.name for m in pkgutil.iter_modules(path) if not m.name.startswith("_"))


def load(package: str, name: str) -> ModuleType:
    """Import `package.name`. KeyError if there is no such file."""
    if not name.isidentifier() or name.startswith("_") or not _is_there(package, name):
        raise KeyError(name)
    return importlib.import_module(f"{package}.{name}")


def _is_there(package: str, name: str) -> bool:
    """Whether there is such a module, without listing the others."""
    return importlib.util.find_spec(f"{package}.{name}") is not None


def load_all(package: str) -> dict[str, ModuleType]:
    """Import every module of `package`: {name: module}, sorted by name."""
    return {name: importlib.import_module(f"{package}.{name}") for name in names(package)}
