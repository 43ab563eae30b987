"""A graph: the nodes in an order in which every source comes before its users."""

from __future__ import annotations

from collections.abc import Iterator

from llamapy.graph.tensor import OUTPUT, Tensor


class Graph:
    """`nodes` have an op, `leafs` have none (weights, inputs, caches); both in order of first
    visit."""

    def __init__(self) -> None:
        self.nodes: list[Tensor] = []
        self.leafs: list[Tensor] = []
        self._seen: set[int] = set()

    def expand(self, tensor: Tensor) -> Tensor:
        """Add `tensor` and all it needs, sources left to right, each once; iterative, so depth has
        no limit."""
        stack: list[tuple[Tensor, int]] = [(tensor, 0)]
        while stack:
            node, at = stack.pop()
            if at == 0:
                if id(node) in self._seen:
                    continue
                self._seen.add(id(node))
            needs = node.src if node.view_src is None else (*node.src, node.view_src)
            if at < len(needs):
                stack.append((node, at + 1))
                stack.append((needs[at], 0))
            elif node.op is not None:
                self.nodes.append(node)
            else:
                self.leafs.append(node)
        return tensor

    def output(self, tensor: Tensor) -> Tensor:
        """Expand and mark as output: its memory is never reused."""
        tensor.flags |= OUTPUT
        return self.expand(tensor)

    def insert(self, tensor: Tensor, before: Tensor) -> None:
        """Add one node, whose sources are all there, right before the node `before`."""
        self._seen.add(id(tensor))
        self.nodes.insert(next(i for i, n in enumerate(self.nodes) if n is before), tensor)

    def users(self) -> dict[int, list[Tensor]]:
        """{id(tensor): nodes that read it (a view counts as reading the tensor it shows)}."""
        found: dict[int, list[Tensor]] = {}
        for node in self.nodes:
            for source in (*node.src, *([node.view_src] if node.view_src is not None else [])):
                found.setdefault(id(source), []).append(node)
        return found

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.nodes)
