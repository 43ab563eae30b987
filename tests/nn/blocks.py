"""Run a block on the reference backend: weights from arrays, inputs by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llamapy.backend.backend import Buffer, BufferType
from llamapy.backend.reference.device import Reference
from llamapy.engine import Engine
from llamapy.graph import PARAM, Tensor
from llamapy.nn.cache import NoCache
from llamapy.nn.params import Params
from llamapy.nn.step import Step
from llamapy.nn.weights import Loaded, Traced, Weights

Array = np.ndarray[Any, Any]
Block = Callable[[Step, Tensor, Weights], Tensor]
HOST = BufferType("mapped", 32)


def params(**sizes: Any) -> Params:
    """Params of a toy with some sizes."""
    base = {"n_ctx_train": 64, "n_embd": 12, "n_layer": 1, "n_ff": 16, "n_head": 3, "n_head_kv": 1}
    base |= {"norm_rms_eps": 1e-5, "norm_eps": 1e-5}
    return Params.of(arch="toy", n_vocab=20, **base | sizes)


def run(
    block: Block,
    x: Array,
    *,
    optional: Callable[[str], bool] = lambda name: False,
    flash: bool = True,
    inputs: dict[str, Array] | None = None,
) -> tuple[Array, dict[str, Array]]:
    """(result, weights by name) of block(g, x, w) for x float32 [n_tokens, n]; weights are
    random."""
    traced = Traced(optional)

    def build(source: Any) -> tuple[Step, Tensor]:
        g = Step(n_tokens=len(x), n_outputs=len(x), n_ctx=64, cache=NoCache(), flash=flash)
        y = block(g, g.input("x", "f32", x.shape[::-1]), Weights(source))
        g.graph.output(y)
        return g, y

    build(traced)
    rng = np.random.default_rng(3)
    arrays = {
        name: rng.standard_normal(ne[::-1]).astype(np.float32) for name, ne in traced.shapes.items()
    }
    g, y = build(Loaded({name: placed(name, a) for name, a in arrays.items()}, "toy"))
    execution = Engine([Reference()]).prepare(g.graph)
    causal = np.triu(np.full((len(x), len(x)), -np.inf, np.float16), 1)
    values = {"x": x, "positions": np.arange(len(x)), "mask": causal} | (inputs or {})
    for name, tensor in g.inputs.items():
        execution.set(tensor, values[name])
    execution.run()
    return execution.get(y), {name: a.astype(np.float64) for name, a in arrays.items()}


def placed(name: str, array: Array) -> Tensor:
    """A weight that lies where the array lies."""
    tensor = Tensor("f32", array.shape[::-1], name=name, flags=PARAM)
    Buffer(HOST, array, weights=True).place(tensor, 0)
    return tensor


def close(got: Array, want: Array) -> bool:
    got = got.reshape(want.shape)
    return float(((got - want) ** 2).sum()) <= 1e-10 * float((want**2).sum())
