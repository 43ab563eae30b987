"""One pass over a text, with any intermediate result on request."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.core.errors import UsageError
from llamapy.graph import PARAM, Tensor
from llamapy.nn.step import Step
from llamapy.runtime.batch import Batch, Tokens
from llamapy.runtime.context import Context

if TYPE_CHECKING:
    from llamapy.runtime.model import Model

Array = np.ndarray[Any, Any]


@dataclass
class Forward:
    """What one pass gave.

    logits    float32 [n_tokens, n_vocab]
    captured  {name: array}: intermediate results, most [n_tokens, n]; heads as they are in the
              graph, innermost last
    """

    logits: np.ndarray[Any, np.dtype[np.float32]]
    captured: dict[str, Array] = field(default_factory=dict)


def named(g: Step) -> dict[str, Tensor]:
    """Results that can be captured, by name: those that the architecture names ("blk.3.out"), and
    what first comes of a weight ("blk.3.attn_q": the product with blk.3.attn_q.weight, before a
    bias)."""
    found: dict[str, Tensor] = {}
    for node in g.graph.nodes:
        for source in node.src:
            if source.flags & PARAM and source.name.endswith(".weight"):
                found.setdefault(source.name.removesuffix(".weight"), node)
    return found | g.taps


class Capture:
    """An observer that keeps the named results of the last ubatch. UsageError for unknown names."""

    whole = False

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(dict.fromkeys(names))
        self.found: dict[str, Array] = {}

    def choose(self, g: Step) -> None:
        there = named(g)
        for name in self.names:
            if name not in there:
                near = difflib.get_close_matches(name, there, n=3, cutoff=0.5)
                hint = f"did you mean {', '.join(near)}?" if near else ""
                raise UsageError(f"there is no result named {name!r}", hint=hint)
            tensor = there[name]
            g.keep(name, tensor if tensor.contiguous else g.cont(tensor))

    def see(self, part: Tokens, values: Callable[[str], Array]) -> None:
        for name in self.names:
            array = values(name)
            self.found[name] = array.reshape(array.shape[_leading_ones(array) :])


def _leading_ones(array: Array) -> int:
    """How many outer sizes of 1 an array has before its last two."""
    return next((i for i, n in enumerate(array.shape[:-2]) if n != 1), array.ndim - 2)


def forward(
    model: Model, tokens: str | Sequence[int], *, capture: Sequence[str] = (), **options: Any
) -> Forward:
    """Compute all logits of a text (or token ids) in one go. `options` are those of a Context."""
    ids = model.tokenize(tokens) if isinstance(tokens, str) else [int(t) for t in tokens]
    if not ids:
        raise UsageError("there are no tokens")
    observer, n = Capture(capture), len(ids)
    sizes = {"n_ctx": n, "n_batch": n, "n_ubatch": n, "n_outputs_max": n} | options
    context = Context(model, observer=observer, **sizes)
    return Forward(context.decode(Batch(ids, outputs="all")), observer.found)


def names(model: Model) -> list[str]:
    """The names that `capture` takes."""
    from llamapy.nn.cache import Notes

    g = Step(n_tokens=2, n_outputs=2, n_ctx=model.params.n_ctx_train, cache=Notes())
    g.expand(model.module.build(g, model.weights, model.params))
    return sorted(named(g))
