"""Where the time goes: what each node of a run took, as the backends measured it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from llamapy.backend.backend import Backend


@dataclass(frozen=True)
class Event:
    """One node computed once. `kind` is the type of its first source (the weights of a product);
    `spans` when each thread began and ended it, in nanoseconds of the monotonic clock."""

    backend: str
    node: str
    op: str
    kind: str
    seconds: float
    spans: tuple[tuple[int, int], ...] = ()


class Trace:
    """`with Trace(backends) as trace: execution.run()` notes every node. Backends that cannot time
    nodes give none."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = list(backends)
        self.events: list[Event] = []

    def __enter__(self) -> Trace:
        for backend in self.backends:
            backend.trace = []
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        for backend in self.backends:
            for node, op, source, seconds, *more in backend.trace or ():
                spans = tuple((start, end) for start, end in more[0]) if more else ()
                self.events.append(Event(backend.name, node, op, source, seconds, spans))
            backend.trace = None

    def by_op(self) -> list[tuple[str, str, str, int, float]]:
        """(backend, op, type, times, seconds) a line, what took longest first."""
        sums: dict[tuple[str, str, str], tuple[int, float]] = {}
        for e in self.events:
            n, seconds = sums.get((e.backend, e.op, e.kind), (0, 0.0))
            sums[e.backend, e.op, e.kind] = (n + 1, seconds + e.seconds)
        lines = [(*key, n, seconds) for key, (n, seconds) in sums.items()]
        return sorted(lines, key=lambda line: -line[-1])
