"""A step: one kernel call of a compiled program. Kernel files turn nodes into steps; the device
into records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType

from llamapy.core import discover
from llamapy.graph.tensor import Tensor
from llamapy.native import Kernel

kernel: Callable[..., Kernel] = Kernel


@dataclass
class Step:
    """`tensors`: the result, then the sources, as the kernel reads them. `types`: phantom names a
    and b.

    shared    bytes of scratch that all threads use together (and later steps with the same
              `leaves` or `takes` key)
    private   bytes of scratch a thread
    leaves    key under which the content of the shared scratch stays valid for later steps
    takes     key of content in the shared scratch that this step reads (made by a step that leaves
              it)
    """

    kernel: Kernel
    tensors: Sequence[Tensor | None]
    params: Sequence[int | float] = ()
    types: tuple[str, str] = ("", "")
    shared: int = 0
    private: int = 0
    leaves: object = None
    takes: object = None
    name: str = ""
    op: str = ""  # of the node
    source: str = ""  # type of its first source


@dataclass(frozen=True)
class Machine:
    """What plans depend on: the number of threads, whether repacked copies are wanted, and to how
    many bits (8 or 16) products with many columns may round activations."""

    n_threads: int = 1
    repack: bool = True
    activation_bits: int = 8


@cache
def planners() -> dict[str, list[ModuleType]]:
    """{op name: kernel modules that offer it}, the most special first (by their PRIORITY, default
    0)."""
    found: dict[str, list[ModuleType]] = {}
    for module in discover.load_all("llamapy.backend.cpu.kernels").values():
        for op in module.OPS:
            found.setdefault(op, []).append(module)
    for modules in found.values():
        modules.sort(key=lambda m: -getattr(m, "PRIORITY", 0))
    return found


def plan(node: Tensor, machine: Machine) -> list[Step] | None:
    """The steps that compute `node`, or None if no kernel can."""
    assert node.op is not None
    for module in planners().get(node.op.name, []):
        steps: list[Step] | None = module.plan(node, machine)
        if steps is not None:
            return steps
    return None
