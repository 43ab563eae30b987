"""rich's consoles, one a stream. Loaded when something is to be drawn that is more than lines."""

from __future__ import annotations

import os
import sys
from functools import cache

from rich.console import Console

UNLIMITED_COLUMNS = 10_000


class _Console(Console):
    """A rich console that leaves a closed pipe to cli/main.py."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


@cache
def console(*, stderr: bool) -> Console:
    """The console of stderr or stdout; away from a terminal its lines are not cut."""
    stream = sys.stderr if stderr else sys.stdout
    free = not (stream and stream.isatty()) and "COLUMNS" not in os.environ
    width = UNLIMITED_COLUMNS if free else None
    return _Console(stderr=stderr, markup=False, emoji=False, highlight=False, width=width)
