"""Backends by name: one folder in `backend/` is one, its class is in `device.py`."""

from __future__ import annotations

import inspect
from typing import Any

from llamapy.backend.backend import Backend
from llamapy.core import discover
from llamapy.core.errors import UsageError

HOST = "cpu"  # computes whatever no device does


def names() -> list[str]:
    """The backends there are."""
    return [name for name in discover.names("llamapy.backend") if name != "backend"]


def make(name: str, **options: Any) -> Backend:
    """A new backend. Options that its class does not have are left out. UsageError for an unknown
    name."""
    if name not in names():
        raise UsageError(f"there is no device {name!r}", hint=f"there are {', '.join(names())}")
    module = discover.load(f"llamapy.backend.{name}", "device")
    backend = next(
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Backend)
        and value.__module__ == module.__name__
    )
    known = inspect.signature(backend).parameters
    return backend(**{key: value for key, value in options.items() if key in known})
