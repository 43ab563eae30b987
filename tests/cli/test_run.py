"""llamapy run: what goes where, what is refused, Ctrl-C, and a talk at a terminal (pty).

The work is done by the reference backend, which needs no kernels; one test runs the real command.
"""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from llamapy.cli import texts
from llamapy.cli.main import run
from llamapy.core.errors import UsageError

TINY = Path(__file__).parents[2] / "fixtures" / "tiny"

# `llamapy run` with the reference backend in place of the CPU's.
COMMAND = """
import functools, sys
from llamapy.runtime import context
context.Context.__init__.__kwdefaults__["backend"] = "reference"
from llamapy.cli.main import main
main(sys.argv[1:])
"""


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamapy.runtime.context import Context

    monkeypatch.setitem(Context.__init__.__kwdefaults__, "backend", "reference")


@pytest.fixture
def call(reference: None, capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """call("-p", "Hi"): (exit code, stdout, stderr) of a greedy run of the tiny Llama."""

    def call(*arguments: str, model: str = "llama") -> tuple[int, str, str]:
        options = ["-m", str(TINY / f"{model}.gguf"), "--temp", "0", "-c", "256"]
        code = run(["run", *options, *arguments])
        out, err = capfd.readouterr()
        return code, out, err

    return call


Call = Callable[..., tuple[int, str, str]]


def test_only_the_answer_goes_to_stdout(call: Call) -> None:
    code, out, err = call("-p", "The sky", "-n", "6")
    assert code == 0
    lines = err.splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["memory", "prompt", "answer"]
    assert re.fullmatch(r"memory: weights 0\.2 MiB, cache [\d.]+ MiB, compute .* MiB", lines[0])
    code, data, err2 = call("-p", "The sky", "-n", "6", "--json")
    found = json.loads(data)
    assert set(found) == {"prompt_tokens", "tokens", "text", "stop_reason", "timings"}
    assert found["text"] == out and code == 0
    assert found["tokens"] <= 6 and found["prompt_tokens"] > 10
    assert found["timings"]["prompt_tokens"] == found["prompt_tokens"]


def test_sources_of_the_prompt(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "The sky\nis blue"
    (tmp_path / "p.txt").write_text(text)
    outputs = {
        call("-p", "The sky\\nis blue", "-n", "5", "--json")[1],
        call("-f", str(tmp_path / "p.txt"), "-n", "5", "--json")[1],
        call("-p", text, "-n", "5", "--no-escape", "--json")[1],
    }
    assert len({json.loads(o)["prompt_tokens"] for o in outputs}) == 1
    assert len({json.loads(o)["text"] for o in outputs}) == 1
    plain = call("-p", "The sky\\nis blue", "-n", "5", "--no-escape", "--json")[1]
    assert json.loads(plain)["prompt_tokens"] != json.loads(outputs.pop())["prompt_tokens"]


def test_raw_and_system(call: Call) -> None:
    def n(*arguments: str) -> int:
        return int(json.loads(call(*arguments, "-n", "1", "--json")[1])["prompt_tokens"])

    assert n("-p", "x", "--raw") == 1 and n("-p", "<|im_end|>", "--raw") == 1
    assert n("-p", "<|im_end|>") > n("-p", "x") + 5  # a user's text is never a special token
    assert n("-p", "x", "--system", "y") > n("-p", "x") > 1
    code, _, err = call("-p", "x", "--raw", "--system", "y")
    assert code == 2 and "do not go together" in err
    # gemma3 wants BOS
    assert (
        json.loads(call("-p", "\u2581", "--raw", "-n", "1", "--json", model="gemma3")[1])[
            "prompt_tokens"
        ]
        == 1
        + json.loads(
            call("-p", "\u2581", "--raw", "--no-bos", "-n", "1", "--json", model="gemma3")[1]
        )["prompt_tokens"]
    )


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["-p", "word " * 300], 1, "tokens, but the context only 256"),
        (["-p", "x", "--ctk", "q9"], 2, "no cache type 'q9'"),
        (["-p", "x", "--ctk", "q8_0"], 1, "heads of 16 values do not divide into q8_0 blocks"),
        (["-p", "x", "-ngl", "1", "--device", "gpu"], 2, "no device 'gpu'"),
        (["-p", "x", "-f", "y"], 2, "-p and -f do not go together"),
        (["-f", "/no/such/file"], 1, "/no/such/file: cannot be read: No such file"),
        (["-p", "x", "--temp", "-1"], 2, "--temp"),
        (["-p", "x", "--top-p", "3"], 2, "--top-p"),
        (["-p", "x", "--stop", ""], 2, "a stop text cannot be empty"),
        (["-p", "x", "-n", "-5"], 2, "n_predict is -5"),
        (["-p", "x", "-fa", "maybe"], 2, "maybe"),
        (["-p", "x", "-b", "0"], 2, "-b"),
        (["-p", "x", "--bogus"], 2, "--bogus"),
    ],
)
def test_refusals(call: Call, arguments: list[str], code: int, message: str) -> None:
    """One line on stderr, nothing on stdout."""
    got, out, err = call(*arguments)
    assert (got, out) == (code, "") and message in err and err.count("\n") == 1, err


def test_other_files(call: Call, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model at all")
    for path in (tmp_path / "x.gguf", tmp_path / "none.gguf", tmp_path):
        code, out, err = call("-m", str(path), "-p", "x")
        assert (code, out, err.count("\n")) == (1, "", 1) and str(path) in err


def test_options_reach_their_places(call: Call) -> None:
    """Each of these must change the text, or leave it, as it should."""
    base = call("-p", "The sky", "-n", "8")[1]
    same = [
        ["-b", "16", "-ub", "3"], ["-t", "1"], ["-fa", "off"], ["--no-mmap"], ["--no-repack"],
        ["-ngl", "2", "--device", "reference"], ["--ctk", "f32", "--ctv", "f32"], ["-s", "5"],
    ]  # fmt: skip
    for options in same:
        assert call("-p", "The sky", "-n", "8", *options)[1] == base, options
    assert base.startswith(call("-p", "The sky", "-n", "3")[1])
    stop = base[2:4]
    assert call("-p", "The sky", "-n", "8", "--stop", stop)[1] == base[: base.index(stop)]
    assert call("-p", "The sky", "-n", "8", "--temp", "9", "-s", "3", "--top-k", "1")[1] == base
    hot = [call("-p", "The sky", "-n", "8", "--temp", "9", "-s", s)[1] for s in ("3", "3", "4")]
    assert hot[0] == hot[1] != hot[2]
    assert call("-p", "The sky", "-n", "8", "--repeat-penalty", "0.1")[1] != base


def test_context_shift(call: Call) -> None:
    options = ["-p", "The sky", "-n", "60", "-c", "40", "--json", "--temp", "3", "-s", "2"]
    full = json.loads(call(*options)[1])
    shifted = json.loads(call(*options, "--context-shift", "--keep", "4")[1])
    assert full["stop_reason"] in ("context", "eos") and shifted["stop_reason"] in ("length", "eos")
    assert shifted["tokens"] >= full["tokens"] and shifted["text"].startswith(full["text"])


@pytest.mark.parametrize(
    "given, want",
    [
        ("a\\nb", "a\nb"), ("\\\\n", "\\n"), ("\\x41\\xC3\\xA4", "A\udcc3\udca4"), ("\\q", "\\q"),
        ("\\x4", "\\x4"), ("tab\\t\\'\\\"", "tab\t'\""), ("\\", "\\"),
    ],
)  # fmt: skip
def test_escapes(given: str, want: str) -> None:
    assert texts.argument(given, escapes=True) == want
    assert texts.argument(given, escapes=False) == given


def test_both_sources() -> None:
    with pytest.raises(UsageError):
        texts.prompt_of("a", Path("b"), escapes=True)


# -- in processes of their own


def start(*arguments: str, **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", COMMAND, "run", "-m", str(TINY / "llama.gguf"), "--temp", "3"]
    return subprocess.Popen([*command, *arguments], **streams)


def test_piped_in() -> None:
    """What is piped in is the prompt, byte for byte."""
    pipe = subprocess.PIPE
    child = start("--raw", "-n", "3", "--json", stdin=pipe, stdout=pipe, stderr=pipe)
    out, _ = child.communicate("\u00e9 x\r\n".encode(), timeout=60)
    assert child.returncode == 0 and json.loads(out)["prompt_tokens"] == 6


def test_ctrl_c() -> None:
    """Generation ends within 0.2 s with code 130; what was said stays on stdout."""
    pipe = subprocess.PIPE
    endless = ("-n", "-1", "-c", "512", "--context-shift", "--ignore-eos")
    with start("-p", "x", *endless, stdout=pipe, stderr=pipe) as child:
        assert child.stdout is not None and child.stderr is not None
        said = child.stdout.read(1)
        time.sleep(0.3)
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        said += child.stdout.read()
        ended = time.monotonic() - began
        err = child.stderr.read().decode()
    assert child.returncode == 130 and len(said) > 1
    last = err.splitlines()[-1]
    assert "ended by interrupted" in err and last.startswith("llamapy: the ")
    assert last.endswith(" was interrupted") and "Traceback" not in err
    assert ended < 2.0  # to the end of the process, on a machine that does other things too


class Terminal:
    """A child process at a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self.seen = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm"
            command = [sys.executable, "-c", COMMAND, "run", "-m", str(TINY / "llama.gguf")]
            os.execv(sys.executable, [*command, *arguments])

    def expect(self, text: str, count: int = 1, seconds: float = 60) -> None:
        """Wait until `text` has been shown `count` times."""
        end = time.monotonic() + seconds
        while self.seen.count(text) < count:
            left = end - time.monotonic()
            assert left > 0, f"no {text!r} in {self.seen!r}"
            if select.select([self.fd], [], [], left)[0]:
                self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def wait(self) -> int:
        """The exit code, after reading what is left."""
        with suppress(OSError):
            while data := os.read(self.fd, 65536):
                self.seen += data.decode("utf-8", "replace")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_conversation() -> None:
    terminal = Terminal("-n", "4", "-c", "256", "-s", "1")
    terminal.expect("> ")
    terminal.send("Hello \\\r")
    terminal.expect(". ")
    terminal.send("there\r")
    terminal.expect("answer: ", 1)
    terminal.send("/regen\r")
    terminal.expect("answer: ", 2)
    terminal.send("/nonsense\r")
    terminal.expect("no command /nonsense")
    terminal.send("/clear\r")
    terminal.send("/regen\r")
    terminal.expect("nothing to answer yet")
    terminal.send("/exit\r")
    assert terminal.wait() == 0
    assert "Traceback" not in terminal.seen


def test_conversation_ends_with_the_input() -> None:
    terminal = Terminal("-n", "4", "-c", "256")
    terminal.expect("> ")
    terminal.send("\x04")
    assert terminal.wait() == 0


def test_ctrl_c_in_a_conversation() -> None:
    """An answer ends, the talk goes on."""
    terminal = Terminal("-n", "-1", "-c", "512", "--context-shift", "--ignore-eos")
    terminal.expect("> ")
    terminal.send("Hi\r")
    time.sleep(1.5)
    terminal.send("\x03")
    terminal.expect("interrupted")
    terminal.expect("> ", 2)
    terminal.send("/exit\r")
    assert terminal.wait() == 0
