"""Graphs for the engine's tests, weights in memory, and their results without any engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from llamapy.backend.backend import Buffer, BufferType, aligned
from llamapy.backend.reference import Reference
from llamapy.graph import INPUT, OUTPUT, Builder, Tensor
from llamapy.graph.op import Array

HOST = BufferType("cpu")


class Host(Reference):
    """The reference backend in the role of the CPU: plain memory, last in priority."""

    name = "host"
    buffer_type = HOST

    def supports_buffer(self, kind: BufferType) -> bool:
        return kind.host


def weight(
    ne: tuple[int, ...], rng: np.random.Generator, kind: BufferType = HOST, name: str = ""
) -> Tensor:
    """A float32 leaf that has memory, as a loaded weight has."""
    tensor = Tensor("f32", ne, name=name or f"w{rng.integers(1 << 30)}")
    buffer = Buffer(kind, aligned(tensor.n_bytes), weights=True)
    buffer.place(tensor, 0)
    numbers = rng.standard_normal(tensor.n_elements) / np.sqrt(ne[0])
    buffer.owner[:] = numbers.astype("f4").view(np.uint8)
    return tensor


def ffn(n_layers: int, rng: np.random.Generator, homes: list[BufferType] | None = None) -> Builder:
    """Normalized gated feed-forward layers, each added to its input; input "x", tap "out"."""
    g = Builder()
    h = x = g.input("x", "f32", (32, 8))
    for i in range(n_layers):
        home = homes[i] if homes else HOST
        gate, up = (weight((32, 64), rng, home, f"blk.{i}.{n}") for n in ("gate", "up"))
        n = g.rms_norm(h)
        inner = g.swiglu(g.mul_mat(gate, n), g.mul_mat(up, n))
        h = g.add(h, g.mul_mat(weight((64, 32), rng, home, f"blk.{i}.down"), inner))
        g.tap(f"blk.{i}.out", h)
    g.taps["out"] = g.graph.output(h)
    assert x.flags & INPUT
    return g


def truth(g: Builder, inputs: dict[str, Array]) -> dict[int, Array]:
    """{id(tensor): numbers} of every tensor, each in memory of its own, views by numpy's rules."""
    found: dict[int, Array] = {}
    for leaf in g.graph.leafs:
        if leaf.data is not None and leaf.name not in inputs:
            found[id(leaf)] = leaf.buffer.owner.view("f4").reshape(leaf.ne[::-1]).copy()
        else:
            found[id(leaf)] = inputs[leaf.name].reshape(leaf.ne[::-1])
    for node in g.graph.nodes:
        assert node.op is not None
        sources = [found[id(s)] for s in node.src]
        if node.op.name == "view":  # these graphs only cut off rows
            assert node.view_offset == 0 and node.nb == node.src[0].nb
            found[id(node)] = sources[0][:, :, : node.ne[1], : node.ne[0]]
        else:
            found[id(node)] = node.op.meaning(*sources)
    return found


def random_graph(rng: np.random.Generator, n_nodes: int, weights: Any = None) -> Builder:
    """Elementwise ops, norms, views, products and writes on rows of 8, with random outputs.

    `weights()` may give a matrix [8, 8] for a product.
    """
    g = Builder()
    pool = [g.input(f"in{i}", "f32", (8, int(rng.integers(1, 5)))) for i in range(3)]
    for _ in range(n_nodes):
        x = pool[rng.integers(len(pool))]
        same = [t for t in pool if t.ne == x.ne]
        y = same[rng.integers(len(same))]
        kind = rng.choice(
            ["add", "mul", "tanh", "norm", "view", "concat", "write", "product", "take"]
        )
        if kind in ("add", "mul"):
            made = getattr(g, kind)(x, y)
        elif kind == "norm":
            made = g.rms_norm(x)
        elif kind == "view":
            made = g.reshape(g.reshape(x, (4, 2 * x.ne[1])), x.ne)
        elif kind == "take":
            made = g.view(x, (8, max(1, x.ne[1] - 1)), x.nb)
            made = g.add(made, made)
        elif kind == "concat" and x.ne[1] < 30:
            made = g.concat(x, pool[rng.integers(len(pool))], 1)
        elif kind == "write":
            made = g.cpy(y, g.neg(x))  # into the place of a computed tensor that nobody else sees
        elif kind == "product" and weights is not None:
            made = g.mul_mat(weights(), x)
        else:
            made = g.tanh(x)
        pool.append(made)
    for node in rng.choice(len(pool) - 3, max(1, n_nodes // 8)) + 3:
        g.graph.output(pool[node])
    g.graph.output(pool[-1])
    return g


def outputs(g: Builder) -> list[Tensor]:
    return [n for n in g.graph.nodes if n.flags & OUTPUT]


def random_inputs(g: Builder, rng: np.random.Generator) -> dict[str, Array]:
    return {n: rng.standard_normal(t.ne[::-1]).astype("f4") for n, t in g.inputs.items()}
