"""Stop strings in streamed text: nothing of a stop is ever shown, and nothing else is kept back.

Text ends at the stop that is complete first; of several that end at the same character, the longest
counts. That does not depend on how the text was cut into pieces. It knows no tokens: a stop that is
a control token prints nothing, so it has to stop by its id (`split_stops`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llamapy.core.errors import UsageError


class StopMatcher:
    """Passes streamed text on until one of `stops` appears. UsageError for an empty stop."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UsageError("--stop '': a stop text cannot be empty")
        self.stops = tuple(dict.fromkeys(stops))
        self.matched: str | None = None  # the stop that ended the text
        self._longest = max(map(len, self.stops), default=0)
        self._held = ""  # the end of the text so far that may be the start of a stop

    def push(self, text: str) -> tuple[str, bool]:
        """(what may be shown now, whether the text has ended); after the end nothing is shown."""
        if self.matched is not None:
            return "", True
        text = self._held + text
        end, start = self._first_stop(text)
        if end:
            self._held, self.matched = "", text[start:end]
            return text[:start], True
        keep = self._held_length(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def flush(self) -> str:
        """What was held back, when the text ends without a stop."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, text: str) -> tuple[int, int]:
        """(end, start) of the stop that is complete first, the longest of those; (0, 0) if none."""
        found = [(text.find(stop), stop) for stop in self.stops]
        spans = [(at + len(stop), at) for at, stop in found if at >= 0]
        return min(spans, default=(0, 0))

    def _held_length(self, text: str) -> int:
        """The length of the longest end of `text` that starts a stop."""
        for n in range(min(len(text), self._longest - 1), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self.stops):
                return n
        return 0


def split_stops(
    stops: Iterable[str], special_ids: Mapping[str, int]
) -> tuple[frozenset[int], list[str]]:
    """(ids of the stops that are special tokens, the others), given {text: id} of those tokens."""
    stops = list(stops)
    ids = frozenset(special_ids[stop] for stop in stops if stop in special_ids)
    return ids, [stop for stop in stops if stop not in special_ids]
