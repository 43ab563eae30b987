"""What a template may spend: time and characters. Nobody vouches for the templates of models.

Every value has a weight: the characters of its texts, and ITEM for each item of a container, a
shared item counted as often as it is reached. No value may weigh more than `largest`, so every
single step takes bounded time, and between steps the clock is looked at.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

from llamapy.core.errors import TemplateError

ITEM = 16
FREE = 1 << 20  # what a single value may weigh without any input, and how that grows with the input
PER_INPUT = 16
TOTAL = 64  # all texts made in one rendering, in units of the largest value
REMEMBERED = 256
WALL = 4


class Budget:
    """The limits of one rendering. `known` holds weights of the input's containers by id."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start, self._start_cpu = time.monotonic(), time.thread_time()
        self.largest = FREE
        self.left = FREE * TOTAL
        self.known: dict[int, int] = {}
        self._recent: OrderedDict[int, tuple[object, int]] = OrderedDict()

    def allow_input(self, weight: int) -> None:
        """Let the limits grow with what the user put in."""
        self.largest = FREE + PER_INPUT * weight
        self.left = self.largest * TOTAL

    def tick(self) -> None:
        """TemplateError if the time is up: of the processor, or WALL times that on the clock.

        (A busy machine is no fault of the template.)
        """
        passed = time.monotonic() - self._start
        if passed <= self.seconds:
            return
        if time.thread_time() - self._start_cpu > self.seconds or passed > WALL * self.seconds:
            raise TemplateError(f"the chat template takes longer than {self.seconds:g} s")

    def fits(self, weight: int) -> int:
        """TemplateError if a value of that weight would be too large."""
        if weight > self.largest:
            raise TemplateError(
                f"the chat template makes a value of {weight} characters, over {self.largest}"
            )
        return weight

    def spend(self, n_chars: int) -> None:
        """Account for a text that was made."""
        self.left -= self.fits(n_chars)
        if self.left < 0:
            raise TemplateError("the chat template makes too much text")

    def each(self, items: Any) -> Iterator[Any]:
        """Go through `items` looking at the clock."""
        for item in items:
            self.tick()
            yield item

    def weigh(self, value: Any) -> int:
        """The weight of a value; TemplateError if it is too large."""
        if isinstance(value, str):
            return self.fits(len(value))
        if not isinstance(value, (list, tuple, dict)):
            return ITEM
        if (weight := self.known.get(id(value))) is not None:
            return weight
        if (seen := self._recent.get(id(value))) is not None and seen[0] is value:
            return seen[1]
        items = [*value, *value.values()] if isinstance(value, Mapping) else value
        weight = ITEM
        for item in items:
            weight = self.fits(weight + ITEM + self.weigh(item))
        self._recent[id(value)] = (value, weight)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        return weight
