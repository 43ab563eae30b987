"""The `llamapy` command: finds subcommands by their file names and turns errors into one line.

Only the file of the command that is named gets imported; `--help` reads the others' first docstring
lines without importing them. Nothing else in llamapy prints an error or chooses an exit code.
"""

from __future__ import annotations

import ast
import difflib
import errno
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from llamapy import __version__
from llamapy.core import discover, settings
from llamapy.core.errors import LlamapyError, UsageError
from llamapy.core.log import log

COMMANDS = "llamapy.cli.commands"
INTERRUPTED = 130
_NO_ROOM = ("failed to map segment", "Cannot allocate memory", "can't start new thread")
BROKEN_PIPE = 141  # what a shell reports for a process that SIGPIPE ended

# typer brings its own copy of click or uses the installed one, by release: take the class from it
ClickException: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Commands(TyperGroup):
    """The subcommands: light stand-ins to list, the real one to run."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name.replace("_", "-") for name in discover.names(COMMANDS)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command that only knows its name and summary, for the help page."""
        if cmd_name not in self.list_commands(ctx):
            return None
        return TyperCommand(name=cmd_name, help=summary(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The command that `args` names, its file imported."""
        name, known = args[0], self.list_commands(ctx)
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
            raise UsageError(f"no command {name!r}", hint=hint)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name)(discover.load(COMMANDS, name.replace("-", "_")).main)
        return name, typer.main.get_command(app), args[1:]


def summary(command: str) -> str:
    """The first line of a command's docstring, read from its file without importing it."""
    spec = importlib.util.find_spec(f"{COMMANDS}.{command.replace('-', '_')}")
    if spec is None or spec.origin is None:
        return ""
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    mains = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "main"]
    text = (ast.get_docstring(mains[0]) if mains else None) or ast.get_docstring(tree) or ""
    return text.partition("\n")[0]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"llamapy {__version__}")
        raise typer.Exit()


app = typer.Typer(cls=Commands, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say on stderr what is going on.")
    ] = False,
) -> None:
    """llama.cpp's toolkit in readable Python: run, inspect, convert, quantize, measure models."""
    logging.basicConfig(format="llamapy: %(message)s", level=logging.WARNING)
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    if ctx.invoked_subcommand is None:
        raise UsageError("a command is missing", hint="llamapy --help lists them")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0, 1 for a failure, 2 for misuse, 130 when interrupted."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # closed, or no text stream
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    gc.set_threshold(50_000)  # a vocabulary alone is 100,000s of objects, and no garbage
    code = run(sys.argv[1:] if arguments is None else list(arguments))
    gc.freeze()  # what there is at the end need not be searched either
    sys.exit(code)


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. Errors become one line on stderr."""
    try:
        command = typer.main.get_command(app)
        with command.make_context("llamapy", arguments) as ctx:
            command.invoke(ctx)
        if sys.stdout:  # None when the shell closed it
            sys.stdout.flush()
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt) as error:
        if settings.debug():
            raise
        message, code = explain(error)
        _say(message)
        return code
    return 0


def explain(error: BaseException) -> tuple[str, int]:
    """The line that tells a person what `error` is, and the exit code."""
    if isinstance(error, LlamapyError):
        return str(error), error.exit_code
    if isinstance(error, ClickException):
        return _misuse(error), 2
    if isinstance(error, KeyboardInterrupt | EOFError | typer.Abort):
        return "interrupted", INTERRUPTED
    if _is_lack_of_memory(error):
        detail = str(error) if isinstance(error, MemoryError) else ""
        return f"not enough memory{': ' if detail else ''}{detail}", 1
    if isinstance(error, OSError):
        names = [os.fsdecode(n) for n in (error.filename, error.filename2) if n is not None]
        return ": ".join([" -> ".join(names)] * bool(names) + [error.strerror or str(error)]), 1
    kind = type(error).__name__
    return f"internal error: {kind}: {error} (LLAMAPY_DEBUG=1 shows where; please report it)", 1


def _is_lack_of_memory(error: BaseException | None) -> bool:
    """Whether there was no room: said so, or hidden behind a library or a thread that could not
    start."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        if isinstance(error, ImportError | OSError | RuntimeError | SystemError):
            text = str(error)
            if any(sign in text for sign in _NO_ROOM):
                return True
        error = error.__cause__ or error.__context__
    return False


def _misuse(error: Any) -> str:
    where = getattr(getattr(error, "ctx", None), "command_path", "llamapy")
    return f"{error.format_message().rstrip('.')} ({where} --help tells more)"


def _say(message: str) -> None:
    """One line to stderr; control characters in it are shown, not sent."""
    if sys.stderr is None:  # the shell closed it
        return
    line = " ".join(message.split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    with suppress(OSError, ValueError):  # nobody listens: the code still tells
        sys.stderr.write(f"llamapy: {shown}\n")
        sys.stderr.flush()


def _silence_stdout() -> None:
    """Point stdout at nothing, so that Python's last flush cannot complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
