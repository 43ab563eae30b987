"""Where the time of a run went: sums by op and by type, and a trace for Chrome or Perfetto."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llamapy.engine.trace import Event


@dataclass(frozen=True)
class Line:
    """One line of a profile. share: of the time of all nodes, 0 to 1."""

    backend: str
    op: str
    kind: str
    times: int
    seconds: float
    share: float


def profile(events: Iterable[Event]) -> list[Line]:
    """Time by backend, op and type of the first source, what took longest first."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for e in events:
        n, seconds = sums.get((e.backend, e.op, e.kind), (0, 0.0))
        sums[e.backend, e.op, e.kind] = (n + 1, seconds + e.seconds)
    whole = sum(seconds for _, seconds in sums.values()) or 1.0
    lines = [Line(*key, n, seconds, seconds / whole) for key, (n, seconds) in sums.items()]
    return sorted(lines, key=lambda line: -line.seconds)


def by_op(lines: Iterable[Line]) -> dict[str, float]:
    """{op: its share}, largest first."""
    shares: dict[str, float] = {}
    for line in lines:
        shares[line.op] = shares.get(line.op, 0.0) + line.share
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def chrome(events: Sequence[Event], names: Sequence[str] = ()) -> dict[str, Any]:
    """Chrome's trace format (chrome://tracing, ui.perfetto.dev): a process a backend, a row a
    thread, a slice a node; microseconds from the first. Nodes without known threads are left out.
    """
    start = min((s for e in events for s, _ in e.spans), default=0)
    backends = list(dict.fromkeys(e.backend for e in events))
    threads = {(backends.index(e.backend), t) for e in events for t in range(len(e.spans))}
    slices: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        for pid, name in enumerate(backends)
    ]
    slices += [
        {"ph": "M", "name": "thread_name", "pid": p, "tid": t, "args": {"name": f"thread {t}"}}
        for p, t in sorted(threads)
    ]
    slices += [
        {
            "ph": "X",
            "name": e.node,
            "cat": e.op,
            "pid": backends.index(e.backend),
            "tid": thread,
            "ts": (begin - start) / 1e3,
            "dur": (end - begin) / 1e3,
            "args": {"op": e.op, "type": e.kind},
        }
        for e in events
        for thread, (begin, end) in enumerate(e.spans)
    ]
    return {"traceEvents": slices, "displayTimeUnit": "ms", "otherData": {"tests": list(names)}}
