"""Models by -hf: which file is meant, and the hub's own library against a server here.

The server speaks what the library asks of the hub: a repository's tree, its revision, its files.
"""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from llamapy.core.errors import FetchError, UsageError
from llamapy.tasks import hub
from tests.convert import folders

TINY = Path(__file__).parents[2] / "fixtures" / "tiny" / "llama.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """Repositories are folders USER/REPO of `root`; `asked` are the files that were sent."""

    root: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        words = path.removeprefix("api/models/").split("/")
        folder = self.root / "/".join(words[:2])
        if not folder.is_dir():
            self.send(
                404, b'{"error": "Repository not found"}', body, {"X-Error-Code": "RepoNotFound"}
            )
        elif path.startswith("api/") and "tree" in words:
            self.send(200, json.dumps([*map(self.entry, self.files(folder))]).encode(), body, {})
        elif path.startswith("api/"):
            names = [{"rfilename": one["path"]} for one in map(self.entry, self.files(folder))]
            about = {"id": "/".join(words[:2]), "sha": COMMIT, "siblings": names}
            self.send(200, json.dumps(about).encode(), body, {})
        else:
            name = "/".join(words[4:])
            if body:
                self.asked.append(name)
            headers = {"ETag": f'"{name.replace("/", "-")}"', "X-Repo-Commit": COMMIT}
            self.send(200, (folder / name).read_bytes(), body, headers)

    def files(self, folder: Path) -> list[Path]:
        self.folder = folder
        return sorted(path for path in folder.rglob("*") if path.is_file())

    def entry(self, path: Path) -> dict[str, object]:
        name = path.relative_to(self.folder).as_posix()
        return {"type": "file", "path": name, "size": path.stat().st_size, "oid": "0" * 40}

    def send(self, code: int, data: bytes, body: bool, headers: dict[str, str]) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, type[Hub]]]:
    """The server's address and what it is made of; its repositories are in tmp_path/hub."""
    made = type("Served", (Hub,), {"root": tmp_path / "hub", "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", made
        server.shutdown()
        thread.join()


def llamapy(address: str, home: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_ENDPOINT": address, "HF_HOME": str(home)}
    command = [sys.executable, "-m", "llamapy", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_a_gguf_model(served: tuple[str, type[Hub]], tmp_path: Path) -> None:
    """Only the file that is meant is fetched, and the second time none."""
    pytest.importorskip("huggingface_hub")
    address, made = served
    repo = made.root / "me" / "tiny"
    repo.mkdir(parents=True)
    shutil.copy(TINY, repo / "tiny-Q4_K_M.gguf")
    for other in ("tiny-F16.gguf", "mmproj-Q4_K_M.gguf", "README.md"):
        (repo / other).write_bytes(b"not asked for")
    command = ("tokenize", "-hf", "me/tiny", "-p", "Hello", "--ids")
    first = llamapy(address, tmp_path / "home", *command)
    assert (first.returncode, first.stderr) == (0, "")
    local = subprocess.run(
        [sys.executable, "-m", "llamapy", "tokenize", "-m", str(TINY), *command[3:]],
        capture_output=True,
        text=True,
        check=True,
    )
    assert first.stdout == local.stdout != ""
    assert made.asked == ["tiny-Q4_K_M.gguf"]
    again = llamapy("http://127.0.0.1:9", tmp_path / "home", *command)  # nobody is there
    assert (again.returncode, again.stdout) == (0, first.stdout)


def test_a_folder_to_convert(served: tuple[str, type[Hub]], tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    address, made = served
    (made.root / "me").mkdir(parents=True)
    folders.assemble("llama", made.root / "me")
    (made.root / "me" / "llama" / "pytorch_model.bin").write_bytes(b"not asked for")
    out = tmp_path / "out.gguf"
    done = llamapy(address, tmp_path / "home", "convert", "-hf", "me/llama", "-o", out)
    assert done.returncode == 0, done.stderr
    assert out.is_file()
    assert {"config.json", "model.safetensors"} <= set(made.asked)
    assert "pytorch_model.bin" not in made.asked


def test_errors_are_one_line(served: tuple[str, type[Hub]], tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    address, made = served
    (made.root / "me" / "text").mkdir(parents=True)
    (made.root / "me" / "text" / "README.md").write_text("no model")
    for repo, where, what in (
        ("no/such", address, "no/such"),
        ("me/text", address, "llamapy convert -hf me/text"),
        ("me/text", "http://127.0.0.1:9", "is there a connection"),
    ):
        done = llamapy(where, tmp_path / "home", "run", "-hf", repo, "-p", "x")
        assert done.returncode == 1
        assert done.stderr.startswith("llamapy: ") and what in done.stderr, done.stderr
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    with pytest.raises(FetchError, match="a/b/c/d"):
        hub.file("a/b/c/d")


FILES = ["README.md", "imatrix.gguf", "m-F16.gguf", "m-Q4_K_M-00002-of-00002.gguf"]
FILES += ["m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_S.gguf", "sub/m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"]


@pytest.mark.parametrize(
    ("left_out", "wanted", "chosen"),
    [
        ("", "", "m-Q4_K_M-00001-of-00002.gguf"),
        ("Q4_K_M", "", "sub/m-Q8_0.gguf"),
        ("Q", "", "m-F16.gguf"),
        ("", "q4_k_s", "m-Q4_K_S.gguf"),
        ("", "Q4_K", None),
        ("m-", "", None),
    ],
)
def test_which_file(left_out: str, wanted: str, chosen: str | None) -> None:
    """As llama.cpp chooses (common/download.cpp)."""
    files = [one for one in FILES if not left_out or left_out not in one]
    assert hub.choose(files, wanted) == chosen


def test_parts() -> None:
    first, second = "m-Q4_K_M-00001-of-00002.gguf", "m-Q4_K_M-00002-of-00002.gguf"
    assert hub.parts(FILES, first) == [first, second]
    assert hub.parts(FILES, "m-F16.gguf") == ["m-F16.gguf"]
    with pytest.raises(FetchError, match=f"1 of 2 parts are missing: {second}"):
        hub.parts([first], first)


def test_one_source_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from llamapy.cli.options import model_of

    for given in (("", ""), ("a", "b/c")):
        with pytest.raises(UsageError):
            hub.folder(*given)
    with pytest.raises(UsageError, match="-m and -hf"):
        model_of(TINY, "me/tiny")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for ask in (lambda: hub.folder("", "me/tiny"), lambda: hub.file("me/tiny")):
        with pytest.raises(FetchError, match=r"llamapy\[hub\]"):
            ask()
