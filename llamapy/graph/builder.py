"""The builder: what an architecture's `build` calls. Records nodes and inputs; computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llamapy.graph.graph import Graph
from llamapy.graph.op import maker
from llamapy.graph.tensor import INPUT, Tensor


class Builder:
    """`g.rms_norm(x, eps=1e-5)`: every op of `graph/ops` is a method. `g.graph` is what has been
    recorded.

    inputs   {name: tensor}: filled from outside before each run
    taps     {name: tensor}: intermediate results by name ("blk.3.out"), for capture
    kept     {name: tensor}: those that are read after each run; their memory is not reused
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.inputs: dict[str, Tensor] = {}
        self.taps: dict[str, Tensor] = {}
        self.kept: dict[str, Tensor] = {}

    def __getattr__(self, op: str) -> Callable[..., Tensor]:
        if op.startswith("_"):
            raise AttributeError(op)
        return maker(op)

    def input(self, name: str, kind: str, ne: Sequence[int]) -> Tensor:
        """The input of this name, made at its first mention."""
        if name not in self.inputs:
            self.inputs[name] = Tensor(kind, ne, name=name, flags=INPUT)
        return self.inputs[name]

    def tap(self, name: str, tensor: Tensor) -> Tensor:
        """Name an intermediate result so that it can be captured; the tensor itself, for
        chaining."""
        self.taps[name] = tensor
        if not tensor.name:
            tensor.name = name
        return tensor

    def keep(self, name: str, tensor: Tensor, *, before: Tensor | None = None) -> Tensor:
        """Let `tensor` be there after the run, as `name`. before: compute it right before that node
        (of which its sources are needed no longer than without)."""
        self.kept[name] = tensor
        if before is not None:
            self.graph.insert(tensor, before)
        return self.graph.output(tensor)

    def expand(self, tensor: Tensor) -> Tensor:
        """Make sure that `tensor` is computed, here in the order (for writes into a cache)."""
        return self.graph.expand(tensor)
