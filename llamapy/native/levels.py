"""SIMD levels: what this machine has, and which one is used. LLAMAPY_ISA forces one.

amx      AVX-512 with VNNI and bf16, and AMX tiles (bf16)
avx512   AVX-512 with VNNI
avx2     AVX2 with FMA and F16C
neon     ARMv8.2 with dot products
generic  whatever LLVM makes of plain vectors

`LLAMAPY_ISA=avx512+emulate` runs the code paths of a level that the machine lacks, with every
special instruction
replaced by plain vector operations of the same meaning: slow, but the same results, for tests.
"""

from __future__ import annotations

import platform
from functools import cache

from llamapy.core import settings
from llamapy.core.errors import UsageError

LEVELS = ("amx", "avx512", "avx2", "neon", "generic")

_NEEDS = {
    "amx": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512bf16", "amx-tile", "amx-bf16"),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "fma", "f16c"),
    "avx2": ("avx2", "fma", "f16c"),
    "neon": ("dotprod",),
    "generic": (),
}


@cache
def features() -> frozenset[str]:
    """LLVM's names of what this processor can do."""
    import llvmlite.binding as llvm

    return frozenset(name for name, there in llvm.get_host_cpu_features().items() if there)


@cache
def available() -> tuple[str, ...]:
    """The levels that this machine has, best first."""
    arm = platform.machine().lower() in ("arm64", "aarch64")
    found = [
        level
        for level in LEVELS
        if (level == "generic" or (level == "neon") == arm)
        and all(f in features() for f in _NEEDS[level])
    ]
    if "amx" in found and not _amx_permitted():
        found.remove("amx")
    return tuple(found)


@cache
def _amx_permitted() -> bool:
    """Ask the system for the tile registers (Linux: arch_prctl ARCH_REQ_XCOMP_PERM 18), once a
    process."""
    import ctypes

    if platform.system() != "Linux":
        return False
    return bool(ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0)


@cache
def chosen() -> tuple[str, bool]:
    """(level, emulated). UsageError if LLAMAPY_ISA names one that is unknown or not here."""
    name, _, how = settings.isa().partition("+")
    if not name:
        return available()[0], False
    if name not in LEVELS or how not in ("", "emulate"):
        raise UsageError(
            f"LLAMAPY_ISA={settings.isa()}: unknown level", hint=f"one of {', '.join(LEVELS)}"
        )
    if name not in available() and not how:
        here = ", ".join(available())
        raise UsageError(
            f"LLAMAPY_ISA={name}: this machine has only {here}", hint=f"or {name}+emulate"
        )
    return name, bool(how)


def level() -> str:
    return chosen()[0]


def has(feature_level: str) -> bool:
    """Whether the special instructions of this level may be emitted."""
    name, emulated = chosen()
    if emulated:
        return False
    order = ("avx2", "avx512", "amx")
    if feature_level in order:
        return name in order and order.index(name) >= order.index(feature_level)
    return name == feature_level


def short_sums() -> bool:
    """Whether running sums of products of bytes (`simd.panel`) are held in 16 bits."""
    return has("avx2") and not has("avx512")


def whole_bytes() -> bool:
    """Whether products of bytes take weights up to 255. NEON's `sdot` takes both numbers signed."""
    return level() != "neon"


# Where sums are short, neighbours among the signed bytes (2 i and 2 i + 1) add up to at most this,
# and at least to minus this: so one step fits whatever the unsigned bytes are.
PAIR_LIMIT = 128


def steps_allowed(greatest: int) -> int:
    """How many steps of `simd.panel` may share a running sum, for unsigned values up to this."""
    return 32767 // (PAIR_LIMIT * greatest) if short_sums() else 1 << 20
