"""What attention asks of a cache, and the two simplest ones: none, and one that only takes
notes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from llamapy.graph import Tensor

if TYPE_CHECKING:
    from llamapy.nn.rope import Rope
    from llamapy.nn.step import Step


@dataclass(frozen=True)
class Layer:
    """How one layer attends.

    index        of the layer
    n_head_kv    heads of keys and values
    n_k, n_v     values a head of K and V
    v_in_k       V is the front of K and not stored by itself (MLA)
    window       how many positions back it sees, itself included; 0 is all
    max_bias     ALiBi's steepest slope; 0 is none
    causal       whether tokens see only what came before
    rope         how keys are turned (to turn them again when positions move); None if they are not
    rope_offset  where in a head of K the turned part begins
    """

    index: int
    n_head_kv: int
    n_k: int
    n_v: int
    v_in_k: bool = False
    window: int = 0
    max_bias: float = 0.0
    causal: bool = True
    rope: Rope | None = None
    rope_offset: int = 0


class Cache(Protocol):
    """Where keys and values live between steps."""

    def store(
        self, g: Step, layer: Layer, k: Tensor, v: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Keep this ubatch's k [n_k, n_head_kv, n_tokens] and v [n_v, n_head_kv, n_tokens] (None: V
        is in K); give all that it may see, [n_k, n_head_kv, n_kv] and [n_v, n_head_kv, n_kv]."""

    def mask(self, g: Step, layer: Layer) -> Tensor:
        """0 where a token may look, -inf where not (less by distance with ALiBi): f16 [n_kv,
        n_tokens]."""

    def turns(self, layer: Layer) -> tuple[int, int]:
        """How many values at a time of Q and K, and of V and the result, a Hadamard matrix turns
        before and after they meet a coarse cache; 0 for none."""


class NoCache:
    """Every token of the ubatch is seen in the ubatch itself: encoders, and traces without data."""

    def store(
        self, g: Step, layer: Layer, k: Tensor, v: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        return k, v

    def mask(self, g: Step, layer: Layer) -> Tensor:
        return g.input(mask_name(layer), "f16", [g.n_tokens, g.n_tokens])

    def turns(self, layer: Layer) -> tuple[int, int]:
        return 0, 0


class Notes(NoCache):
    """Notes which layers attend, and how: `layers` is the list that a real cache is made from."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def store(
        self, g: Step, layer: Layer, k: Tensor, v: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        self.layers.append(layer)
        return k, v


def mask_name(layer: Layer) -> str:
    """The name of the mask input: layers with the same sight share it."""
    parts = ["mask"]
    parts += [f"window{layer.window}"] if layer.window else []
    parts += ["alibi"] if layer.max_bias > 0 else []
    parts += [] if layer.causal else ["both"]
    return ".".join(parts)
