"""Run an architecture's `build` without data: which tensors it needs, and how its layers attend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn.cache import Layer, Notes
from llamapy.nn.step import Step
from llamapy.nn.weights import Shape, Traced, Weights


@dataclass(frozen=True)
class Trace:
    """shapes  {tensor name: ne} in the order of first use
    layers  the layers that attend through a cache; none for encoders
    output  what `build` gave (logits, or hidden states)
    """

    shapes: dict[str, Shape]
    layers: list[Layer]
    output: Tensor


def trace(
    arch: ModuleType,
    params: Any,
    *,
    optional: Callable[[str], bool] | None = None,
    weights: Weights | None = None,
    n_ctx: int = 0,
) -> Trace:
    """Trace the architecture file `arch`.

    optional  whether an optional tensor is there; without it, the biases that the file's BIASED
              names are
    weights   real tensors to use instead; `shapes` stays empty then
    n_ctx     the context's size; 0 is the one trained for
    """
    source = Traced(optional or (lambda name: is_bias(arch, name)))
    notes = Notes()
    step = Step(n_tokens=2, n_outputs=1, n_ctx=n_ctx or params.n_ctx_train, cache=notes)
    output = arch.build(step, weights or Weights(source), params)
    return Trace(source.shapes, notes.layers, output)


def is_bias(arch: ModuleType, name: str) -> bool:
    """Whether `name` is one of the biases that the architecture has if nothing else is said."""
    stem, _, ending = name.rpartition(".")
    return ending == "bias" and stem.rpartition(".")[2] in arch.BIASED
