"""Telling a person that kernels are being compiled, which happens once a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

from llamapy.cli import console

PATIENCE_S = 1.5  # loading what was compiled before takes less


@contextmanager
def compiling() -> Iterator[Callable[[str, int, int], None]]:
    """Gives the hook to hand to a context: after a moment of compiling it shows a bar, or away from
    a terminal says so in one line."""
    start, said = 0.0, False
    with console.progress("compiling kernels, once", unit="kernels") as tick:

        def hook(kernel: str, done: int, total: int) -> None:
            nonlocal start, said
            start = start or monotonic()
            if monotonic() - start < PATIENCE_S:
                return
            tick(done, total)
            if not said and not console.at_terminal():
                console.note(f"compiling kernels, once ({total - done} to go)")
            said = True

        yield hook
