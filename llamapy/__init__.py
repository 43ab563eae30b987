"""llamapy: llama.cpp's toolkit in Python that a person can read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llamapy.quants.api import dequantize as dequantize
    from llamapy.quants.api import quantize as quantize
    from llamapy.runtime.context import Context as Context
    from llamapy.runtime.model import Model as Model
    from llamapy.tasks.inspect import open_gguf as open_gguf

__version__ = "0.1.0"

# Public names and where they live; loaded when first used, so that `import llamapy` stays light.
_PUBLIC = {
    "Context": "llamapy.runtime.context",
    "Model": "llamapy.runtime.model",
    "dequantize": "llamapy.quants.api",
    "open_gguf": "llamapy.tasks.inspect",
    "quantize": "llamapy.quants.api",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'llamapy' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
