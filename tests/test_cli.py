"""The command line as a whole: every command, and every way in which one may end."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llamapy import __version__
from llamapy.cli import commands
from llamapy.cli.main import run, summary
from llamapy.core import discover

NAMES = [name.replace("_", "-") for name in discover.names("llamapy.cli.commands")]

FAILING = '''
"""A command for these tests."""
import sys, time
from llamapy.core import errors

def main(kind: str, count: int = 1) -> None:
    """End in the way that KIND names.

    More about it.
    """
    if kind == "plain": raise errors.LlamapyError("x.gguf: bad", hint="try y")
    if kind == "misuse": raise errors.UsageError("not both")
    if kind == "aborted": raise errors.Aborted("stopped")
    if kind == "missing": open("no/such/file")
    if kind == "memory": raise MemoryError("4 GiB")
    if kind == "thread": raise RuntimeError("can't start new thread")
    if kind == "library":
        try: raise OSError("libLLVM.so: failed to map segment from shared object")
        except OSError as error: raise ImportError("no libLLVM.so") from error
    if kind == "interrupt": raise KeyboardInterrupt
    if kind == "bug": raise TypeError("a\\nb")
    if kind == "escape": raise errors.LlamapyError("key \\x1b[31m\\nred")
    if kind == "wait":
        print("ready", flush=True)
        time.sleep(60)
    if kind == "flood":
        while True: print("y" * 1000)
    if kind == "write": print("y" * 100000)
'''


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One more folder of commands, holding `end-as`."""
    (tmp_path / "end_as.py").write_text(FAILING)
    monkeypatch.setattr(commands, "__path__", [*commands.__path__, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("llamapy.cli.commands.end_as", None)


def start(folder: Path, *arguments: str, **options: object) -> subprocess.Popen[bytes]:
    """The command line in a process of its own, with `folder` as one more folder of commands."""
    code = (
        # A process in the background may have been told to ignore Ctrl-C; this one stands for one
        # in the foreground.
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from llamapy.cli import commands, main; "
        f"commands.__path__.append({str(folder)!r}); main.main()"
    )
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, **options
    )


@pytest.mark.parametrize("name", NAMES)
def test_help_of_every_command(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--help"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith(f"Usage: llamapy {name}")
    assert " ".join(summary(name).split()) in " ".join(out.split())
    assert err == ""


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_a_summary_of_one_line(name: str) -> None:
    assert summary(name).endswith(".")
    assert len(summary(name)) <= 80


@pytest.mark.parametrize("name", NAMES)
def test_unknown_option_of_every_command(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([name, "--no-such-option"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("llamapy: ")
    assert "--no-such-option" in err
    assert f"llamapy {name} --help" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_file_is_one_line_that_names_it(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"text")))
    run([name, "--help"])
    takes_model = "--model" in capfd.readouterr().out
    code = run([name, *(["-m"] if takes_model else []), "no/such.gguf"])
    out, err = capfd.readouterr()
    assert (code, out) in [(1, ""), (2, "")]
    assert "no/such.gguf" in err or code == 2
    assert err.startswith("llamapy: ")
    assert err.count("\n") == 1


def test_the_readme_names_the_commands_that_there_are() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    table = "".join(line for line in readme.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`llamapy ([a-z-]+)", table)) == set(NAMES)


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capfd.readouterr().out == f"llamapy {__version__}\n"


def test_help_lists_every_command(failing: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (failing / "broken.py").write_text('"""Never imported."""\nraise RuntimeError\n')
    assert run(["--help"]) == 0
    out = capfd.readouterr().out
    for name in [*NAMES, "end-as", "broken"]:
        assert f"\n  {name} " in out
    assert "End in the way that KIND names." in out
    assert "More about it" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "a command is missing"),
        (["end_as"], 2, "no command 'end_as' (did you mean end-as?)"),
        (["zzzz"], 2, "no command 'zzzz' (there are "),
        (["--frob"], 2, "--frob"),
        (["end-as"], 2, "llamapy: Missing argument '"),
        (["end-as", "plain", "--count", "x"], 2, "--count"),
        (["end-as", "plain"], 1, "llamapy: x.gguf: bad (try y)"),
        (["end-as", "misuse"], 2, "llamapy: not both"),
        (["end-as", "aborted"], 130, "llamapy: stopped"),
        (["end-as", "missing"], 1, "llamapy: no/such/file: No such file or directory"),
        (["end-as", "memory"], 1, "llamapy: not enough memory: 4 GiB"),
        (["end-as", "library"], 1, "llamapy: not enough memory\n"),
        (["end-as", "thread"], 1, "llamapy: not enough memory\n"),
        (["end-as", "interrupt"], 130, "llamapy: interrupted"),
        (["end-as", "bug"], 1, "llamapy: internal error: TypeError: a b (LLAMAPY_DEBUG=1"),
        (["end-as", "escape"], 1, "llamapy: key \\x1b[31m red"),
    ],
)
def test_an_error_is_one_line_and_a_code(
    arguments: list[str], code: int, said: str, failing: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert said in err
    assert err.startswith("llamapy: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_debug_shows_the_traceback(failing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMAPY_DEBUG", "1")
    with pytest.raises(TypeError):
        run(["end-as", "bug"])


def test_ctrl_c_ends_with_130(failing: Path) -> None:
    process = start(failing, "end-as", "wait", stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    sent = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert time.monotonic() - sent < 5
    assert (process.returncode, err) == (130, b"llamapy: interrupted\n")


def test_a_closed_pipe_is_no_error(failing: Path) -> None:
    process = start(failing, "end-as", "flood", stdout=subprocess.PIPE)
    assert process.stdout
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=30) == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["end-as", "write"], ["--version"]])
def test_a_full_disk_is_one_line(arguments: list[str], failing: Path) -> None:
    with open("/dev/full", "wb") as full:
        process = start(failing, *arguments, stdout=full)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (1, b"llamapy: No space left on device\n")


@pytest.mark.parametrize(("arguments", "code"), [("zzzz 2>&-", 2), ("--version >&-", 0)])
def test_a_closed_stream_changes_no_code(arguments: str, code: int) -> None:
    command = f"exec {sys.executable} -m llamapy {arguments}"
    done = subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
