"""What a sampler is: one step of the chain, made from the parameters, maybe with a state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from llamapy.samplers._candidates import Candidates
from llamapy.samplers._params import SamplerParams

Breakers = Mapping[
    int, Sequence[tuple[int, ...]]
]  # first token -> the tails that complete a breaker


@dataclass(frozen=True)
class Setup:
    """All that a sampler may be made from: the parameters and what the chain knows of the model."""

    params: SamplerParams
    n_vocab: int
    seed: int = 0  # never -1: the chain has drawn one
    bias: Mapping[int, float] = field(default_factory=dict)
    breakers: Breakers = field(default_factory=dict)


class Sampler(ABC):
    """A step of the chain. The file's name is the sampler's name.

    Class facts: `letter` in a short sequence (`edskypmxt`), other `aliases` of the name,
    `keeps_best` (the largest logit always survives, so greedy decoding may skip the step),
    `selects` (it chooses the token and ends the chain).
    """

    letter: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    keeps_best: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    active = True  # False: the parameters turn the step off

    @classmethod
    @abstractmethod
    def from_setup(cls, setup: Setup) -> Sampler:
        """Make the step."""

    @abstractmethod
    def apply(self, c: Candidates) -> None:
        """Change the candidates (at least one), or choose one if `selects`."""

    def accept(self, token: int) -> None:
        """Take note of a token of the text: prompt or generated."""
        return

    def reset(self) -> None:
        """Forget the text and start the random numbers again."""
        return

    def state(self) -> dict[str, Any]:
        """What `restore` needs to go on from here: plain lists and numbers."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        return

    @classmethod
    def name(cls) -> str:
        """The sampler's name: that of its file."""
        return cls.__module__.rpartition(".")[2]

    def values(self) -> str:
        """The parameters, for `describe`."""
        return ""

    def describe(self) -> str:
        """`name(values)`, or `?name` for a step that is off."""
        values = self.values()
        if not self.active:
            return f"?{self.name()}"
        return f"{self.name()}({values})" if values else self.name()
