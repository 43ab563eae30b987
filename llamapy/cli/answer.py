"""Showing an answer while it is made: text to stdout piece by piece, Ctrl-C, and timings to
stderr."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from llamapy.cli import console

if TYPE_CHECKING:
    from llamapy.runtime.generate import Result

# A model cannot drive the terminal: control characters but these three are shown, not sent.
_SHOWN = {c: chr(0x2400 + c) for c in range(32) if chr(c) not in "\n\t\r"} | {127: "\u2421"}


@contextmanager
def interruptible(stop: Callable[[], bool]) -> Iterator[None]:
    """The first Ctrl-C calls `stop`, which is to end the work soon; where it says that it cannot,
    and at the second, KeyboardInterrupt ends it at once."""

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if not stop():
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def show(pieces: Iterable[str]) -> None:
    """Write the pieces to stdout as they come."""
    terminal = sys.stdout.isatty()
    ended = True
    with suppress(AttributeError):  # where stdout is no file of the system's
        sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    try:
        for piece in pieces:
            sys.stdout.write(piece.translate(_SHOWN) if terminal else piece)
            sys.stdout.flush()
            ended = piece.endswith("\n")
    finally:
        if terminal and not ended:
            sys.stdout.write("\n")
            sys.stdout.flush()


def timings(result: Result, seed: int | None = None) -> None:
    """One line a phase to stderr."""
    t = result.timings
    console.note(
        f"prompt: {t.prompt_tokens} tokens in {t.prompt_seconds:.2f} s, "
        f"{t.prompt_tokens_per_second:.1f} tokens/s"
    )
    console.note(
        f"answer: {len(result.tokens)} tokens in {t.eval_seconds + t.sample_seconds:.2f} s, "
        f"{t.tokens_per_second:.1f} tokens/s, ended by {result.stop_reason}"
        + ("" if seed is None else f", seed {seed}")
    )


def as_json(result: Result) -> dict[str, Any]:
    """A finished generation as data."""
    return {
        "prompt_tokens": len(result.prompt_tokens),
        "tokens": len(result.tokens),
        "text": result.text,
        "stop_reason": result.stop_reason,
        "timings": result.timings.as_dict(),
    }
