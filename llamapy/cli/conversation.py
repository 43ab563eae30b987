"""A chat at the terminal: reads lines, knows the commands that begin with /, shows answers."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from llamapy.cli import answer, console
from llamapy.core.errors import Aborted, LlamapyError

if TYPE_CHECKING:
    from llamapy.runtime.chat_session import ChatSession

HELP = r"/regen answers anew, /clear begins anew, /exit ends; \ at a line's end goes on below"


def converse(session: ChatSession) -> None:
    """Talk until /exit or the end of input. A fault in one answer is told, and the talk goes on."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives input() its line editing

    console.note(HELP)
    while True:
        try:
            text = read()
        except EOFError:
            return
        if text == "/exit":
            return
        try:
            _act(session, text)
        except (Aborted, KeyboardInterrupt):
            console.note("interrupted")
        except LlamapyError as error:
            console.warn(str(error))


def _act(session: ChatSession, text: str) -> None:
    if not text.strip():
        return
    if text == "/clear":
        session.clear()
        return
    if text.startswith("/") and text not in ("/regen", "/help") and " " not in text:
        console.note(f"no command {text}; {HELP}")
        return
    if text == "/help":
        console.note(HELP)
        return
    pieces = session.again() if text == "/regen" else session.reply(text)
    with answer.interruptible(session.stop):
        answer.show(pieces)
    if session.result is not None:
        answer.timings(session.result)


def read() -> str:
    """One message: a line, or several of which all but the last end with a backslash."""
    lines = [_line("> ")]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(_line(". "))
    return "\n".join(lines)


def _line(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    sys.stderr.write(prompt)  # stdout goes elsewhere, and only answers go there
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
