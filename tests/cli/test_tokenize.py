"""llamapy tokenize: lines, ids, JSON, escapes, the other way, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent.parent / "fixtures" / "tokenizers"
SPM, BPE, UGM = (str(FOLDER / f"{name}.gguf") for name in ("spm", "bpe", "ugm"))


def run(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "llamapy", "tokenize", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, check=False)


def ids(*arguments: str, stdin: bytes = b"") -> list[int]:
    done = run("-m", BPE, "--ids", *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def test_lines_are_llama_tokenize_s() -> None:
    done = run("-m", SPM, "-p", "a\\n</s>", "--show-count")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines(keepends=True)
    assert lines[0] == b"     1 -> '<s>'\n"
    assert b"     2 -> '</s>'\n" in lines
    assert lines[-1] == b"Total number of tokens: %d\n" % (done.stdout.count(b" -> '"))


def test_json_has_ids_and_pieces() -> None:
    done = run("-m", SPM, "--json", "-p", "x</s>", "--no-bos")
    found = json.loads(done.stdout)
    assert set(found) == {"ids", "pieces"}
    assert len(found["ids"]) == len(found["pieces"])
    assert "".join(found["pieces"]) == " x</s>"


def test_control_tokens_are_text_when_told() -> None:
    assert 2 in ids("-p", "a</s>")
    assert 2 not in ids("-p", "a</s>", "--no-parse-special")


def test_escapes_count_in_p_only(tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_bytes(rb"a\n")
    assert ids("-p", "a\\n") == ids("--stdin", stdin=b"a\n")
    assert ids("-p", "a\\n", "--no-escape") == ids("-f", str(file)) == ids(stdin=rb"a\n")


def test_files_and_stdin_are_read_byte_for_byte(tmp_path: Path) -> None:
    data = b"\r\n caf\xc3\xa9 \xff\x00 e\xcc\x81\r\n\n"
    file = tmp_path / "text"
    file.write_bytes(data)
    assert ids("-f", str(file)) == ids("--stdin", stdin=data)
    decoded = run("-m", BPE, "--decode", "--stdin", stdin=str(ids("-f", str(file))).encode())
    assert decoded.stdout == data.replace(b"\xff", "\ufffd".encode())


@pytest.mark.parametrize("text", ["[1, 2]", "1 2", "1,2\n", " [1,2] \n"])
def test_ids_are_taken_in_any_common_form(text: str) -> None:
    assert run("-m", BPE, "--decode", "-p", text).stdout == b"<s></s>"
    assert run("-m", BPE, "--decode", "--no-parse-special", "-p", text).stdout == b""


def test_decode_of_nothing_is_nothing() -> None:
    done = run("-m", BPE, "--decode", "--json", "-p", "[]")
    assert json.loads(done.stdout) == {"ids": [], "text": ""}


def test_visual_keeps_pieces_apart_without_colours() -> None:
    done = run("-m", BPE, "--visual", "-p", "a\\nb")
    assert done.stdout.replace(b"|", b"").decode() == "a⏎\nb\n"
    assert b"tokens" in done.stderr


def test_another_pre_tokenizer_may_be_asked_for() -> None:
    other = run("-m", BPE, "--pre", "qwen2", "--ids", "-p", "1234 the")
    assert other.returncode == 0
    refused = run("-m", BPE, "--pre", "nope", "-p", "x")
    assert refused.returncode == 1
    assert b"nope" in refused.stderr
    assert b"--pre" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--ids", "--json", "-p", "x"], 2, b"do not go together"),
        (["--decode", "--ids", "-p", "1"], 2, b"do not go together"),
        (["--decode", "-p", "x"], 2, b"no token ids"),
        (["--decode", "-p", "99999"], 1, b"token 99999 is not in the vocabulary"),
        (["--stdin", "-p", "x"], 2, b"--stdin does not go with"),
        (["-f", "no-such-file"], 1, b"no-such-file"),
    ],
)
def test_misuse_is_one_line(arguments: list[str], code: int, message: bytes) -> None:
    done = run("-m", BPE, *arguments)
    assert (done.returncode, done.stdout) == (code, b"")
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_short_text_compiles_nothing() -> None:
    code = (
        "import sys; from llamapy.cli.main import run; "
        f"code = run(['tokenize', '-m', {UGM!r}, '-p', 'hello']); "
        "sys.exit(code or 'numba' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
