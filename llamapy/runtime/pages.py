"""Weights in large pages: each token reads all of them, and small pages cost a tenth of that time.

The file is then read into memory of this process instead of being mapped. Only where the system has
large pages for the asking, and memory is plenty.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.backend.backend import host_memory
from llamapy.gguf.header import TensorInfo

Bytes = NDArray[np.uint8]
LARGE = 2 << 20  # bytes of a large page
LEAST = 8 * LARGE  # below, the caches hold the weights anyway
SHARE = 3  # at most a third of the memory that is available is taken
_READERS = 2
_ALIGNMENT = 64


def read(file: Any, infos: Sequence[TensorInfo]) -> dict[str, Bytes]:
    """{tensor name: its bytes, little-endian, read-only}, side by side in large pages; empty where
    that is not to be had."""
    starts, total = [], 0
    for info in infos:
        starts.append(total)
        total += -(-info.n_bytes // _ALIGNMENT) * _ALIGNMENT
    room = _room(total)
    if room is None:
        return {}
    made = {i.name: room[at : at + i.n_bytes] for i, at in zip(infos, starts)}
    with ThreadPoolExecutor(_READERS) as pool:
        list(pool.map(lambda info: file.read_into(info, made[info.name]), infos))
    for data in made.values():
        data.flags.writeable = False
    return made


def _room(n_bytes: int) -> Bytes | None:
    if n_bytes < LEAST or not hasattr(mmap, "MADV_HUGEPAGE") or not _offered():
        return None
    if n_bytes > _available() // SHARE:
        return None
    try:
        whole = mmap.mmap(-1, n_bytes + LARGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        whole.madvise(mmap.MADV_HUGEPAGE)
    except (OSError, MemoryError):
        return None
    room = np.frombuffer(whole, np.uint8)
    start = -room.ctypes.data % LARGE
    return room[start : start + n_bytes]


def _offered(path: str = "/sys/kernel/mm/transparent_hugepage/enabled") -> bool:
    """Whether the system gives large pages to those who ask."""
    try:
        return "[never]" not in Path(path).read_text()
    except OSError:
        return False


def _available(path: str = "/proc/meminfo") -> int:
    """Bytes that this process may take without harm to others: what the system calls available,
    less where limits of this process say so."""
    found = host_memory()[0]
    try:
        lines = dict(line.split(":", 1) for line in Path(path).read_text().splitlines())
        found = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        pass
    return min(found, _limit())


def _limit() -> int:
    """Bytes that limits of the process and of its control group leave."""
    import resource

    most = [1 << 62]
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft = resource.getrlimit(kind)[0]
        if soft != resource.RLIM_INFINITY:
            most.append(soft)
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (Path(os.sep) / "sys/fs/cgroup" / name).read_text().strip()
            most.append(int(text))
        except (OSError, ValueError):
            continue
    return min(most)
