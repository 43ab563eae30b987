"""The interface between the engine and whoever computes. Knows graphs; does not know models."""

from __future__ import annotations

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llamapy.graph.tensor import Tensor


@dataclass(frozen=True)
class BufferType:
    """A kind of memory. `host`: plain memory of this process that the CPU may read and write."""

    name: str
    alignment: int = 64
    host: bool = True


class Buffer:
    """A piece of memory of one type: `address`, `n_bytes`, and `owner`, the object that keeps it
    alive."""

    def __init__(
        self, kind: BufferType, owner: np.ndarray[Any, Any], *, weights: bool = False
    ) -> None:
        self.kind, self.owner, self.weights = kind, owner, weights
        self.address = int(owner.ctypes.data)
        self.n_bytes = int(owner.nbytes)

    def place(self, tensor: Tensor, offset: int) -> None:
        """Give `tensor` the bytes from `offset` on. AssertionError if they do not fit: our own
        mistake."""
        assert 0 <= offset <= self.n_bytes - tensor.n_bytes, (tensor, offset, self.n_bytes)
        tensor.buffer, tensor.data = self, self.address + offset


def aligned(n_bytes: int, alignment: int = 64) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """n_bytes of zeroed memory whose address is a multiple of `alignment`."""
    raw = np.zeros(n_bytes + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + n_bytes]


def on_small_pages(n_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
    """n_bytes of zeroed memory that takes up only what is touched, to 4 KiB; None where that is not
    to be had.

    `aligned` gives large pages where the system has them: fast to read, but each is cleared whole,
    2 MiB of it, when its first byte is touched.
    """
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return None
    try:
        pages = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    except (OSError, OverflowError):
        return None
    return np.frombuffer(pages, np.uint8)


def host_memory() -> tuple[int, int]:
    """(free, total) bytes of this machine; (0, 0) where the system does not say."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0, 0


class Program(ABC):
    """A split compiled by a backend: run as often as wanted, only the contents of its inputs
    change."""

    @abstractmethod
    def run(self) -> None:
        """Compute every node. Raises Aborted when the backend's abort flag is set meanwhile."""


class Backend(ABC):
    """One place that computes. The optional parts have defaults that do nothing (the CPU leaves
    them so)."""

    name: str
    buffer_type: BufferType
    # While this is a list, programs that can time nodes append (node, op, type of its first source,
    # seconds) to it, and when each thread began and ended it (nanoseconds) if they know.
    trace: list[tuple[Any, ...]] | None = None

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes."""

    def buffer_types(self) -> Sequence[BufferType]:
        """The types it can allocate, the default first; extra ones may repack weights."""
        return (self.buffer_type,)

    def allocate(self, n_bytes: int, kind: BufferType | None = None) -> Buffer:
        kind = kind or self.buffer_type
        return Buffer(kind, aligned(n_bytes, kind.alignment))

    def allocate_sparse(self, n_bytes: int) -> Buffer | None:
        """Memory of the default type, for what may stay empty but for a few bytes here and there;
        None where `allocate` is as good. Slower to read where it is full."""
        return None

    @abstractmethod
    def supports_op(self, node: Tensor) -> bool:
        """Whether it can compute this node (its op, types and strides)."""

    def supports_buffer(self, kind: BufferType) -> bool:
        """Whether it can read tensors in memory of this type."""
        return kind == self.buffer_type

    def offload_op(self, node: Tensor) -> bool:
        """Whether it wants this node although the weights lie elsewhere (large batches on an
        accelerator)."""
        return False

    @abstractmethod
    def compile(self, nodes: Sequence[Tensor]) -> Program:
        """Make the nodes (all with memory, in order) into something that runs."""

    def abort(self) -> None:  # noqa: B027
        """Make the program that runs now end soon: its `run` raises Aborted. From any thread."""

    def set_tensor(self, tensor: Tensor, data: np.ndarray[Any, Any]) -> None:
        """Copy contiguous bytes of the right size into `tensor`."""
        view(tensor)[...] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)

    def get_tensor(self, tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The bytes of a contiguous tensor, copied."""
        return view(tensor).copy()

    def copy_tensor(self, source: Tensor, target: Tensor) -> None:
        """Copy between tensors of the same layout."""
        view(target)[...] = view(source)

    def synchronize(self) -> None:  # noqa: B027
        """Wait for all that was started."""

    def record_event(self) -> Any:
        """A mark in the stream of work; None where work is synchronous."""
        return None

    def wait_event(self, event: Any) -> None:  # noqa: B027
        """Wait for a mark made by another backend."""


def view(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor in host memory, as they lie."""
    assert tensor.data is not None and tensor.buffer is not None, tensor
    start = tensor.data - tensor.buffer.address
    return np.asarray(
        tensor.buffer.owner.view(np.uint8).reshape(-1)[start : start + tensor.n_bytes]
    )
