"""Bad input: one clear error, nothing lost, nothing half-written; and what is only warned about."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import quantize_models as models

from llamapy.core.errors import FileFormatError, LlamapyError, ModelError, OutputError, QuantError
from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import codec
from llamapy.tasks import importance
from llamapy.tasks.file_types import FILE_TYPES
from llamapy.tasks.importance import Entry, Imatrix
from llamapy.tasks.quantize import Options, quantize_file
from llamapy.tasks.quantize_plan import Choices

NAME = "blk.1.ffn_up.weight"


def write(path: Path, tensors: dict[str, np.ndarray[Any, Any]], kind: int = 0) -> Path:
    """A file of these tensors, as float32 or as they are."""
    writer = GGUFWriter(path)
    writer.add("general.architecture", "llama")
    for name, array in tensors.items():
        writer.add_tensor(name, array.shape[::-1], kind, array.nbytes)
    writer.write([array.tobytes() for array in tensors.values()])
    return path


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return (np.random.RandomState(seed).standard_normal(shape) * 0.05).astype(np.float32)


def left(folder: Path) -> list[str]:
    """Files other than the input."""
    return sorted(p.name for p in folder.rglob("*") if p.name != "in.gguf")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("target", ["q4_k_m", "q8_0", "f16", "copy"])
def test_numbers_that_are_not_finite(value: float, kind: str, target: str, tmp_path: Path) -> None:
    array = normal(3, 512)
    array[2, 300] = value
    blocks = {"f32": array, "f16": array.astype("<f2"), "bf16": (array.view("<u4") >> 16)}[kind]
    stored = blocks.astype("<u2") if kind == "bf16" else blocks
    source = write(tmp_path / "in.gguf", {NAME: stored}, codec.get(kind).type_id)
    with pytest.raises(QuantError, match=rf"'{NAME}': row 2, column 300 is -?(nan|inf)") as caught:
        quantize_file(source, tmp_path / "out.gguf", target)
    assert "--allow-nonfinite" in caught.value.hint
    assert left(tmp_path) == []
    if target != "q4_k_m":
        job = quantize_file(source, tmp_path / "out.gguf", target, allow_nonfinite=True)
        assert [text for text in job.warnings if "row 2, column 300" in text]


def test_the_matrix_of_an_expert_is_named(tmp_path: Path) -> None:
    array = normal(4, 2, 256)
    array[3, 1, 7] = np.nan
    source = write(tmp_path / "in.gguf", {"blk.0.ffn_up_exps.weight": array})
    with pytest.raises(QuantError, match="matrix 3, row 1, column 7 is nan"):
        quantize_file(source, tmp_path / "out.gguf", "q8_0")


def test_a_norm_that_is_copied_is_looked_at_too(tmp_path: Path) -> None:
    source = write(tmp_path / "in.gguf", {"output_norm.weight": np.full(8, np.nan, np.float32)})
    with pytest.raises(QuantError, match=r"row 0, column 0 is nan"):
        quantize_file(source, tmp_path / "out.gguf", "q8_0")


@pytest.mark.parametrize("kind", ["q8_0", "q4_K", "iq3_xxs"])
def test_infinite_scales_of_a_quantized_file(kind: str, tmp_path: Path) -> None:
    found = codec.get(kind)
    blocks = np.zeros((2, 512 // found.n_values), found.block)
    blocks["d"][1, 1] = np.inf
    writer = GGUFWriter(tmp_path / "in.gguf")
    writer.add("general.architecture", "llama")
    writer.add_tensor(NAME, (512, 2), found.type_id, blocks.nbytes)
    writer.write([blocks.tobytes()])
    for target, more in (("copy", {}), ("q5_0", {"allow_requantize": True})):
        with pytest.raises(QuantError, match=rf"'{NAME}': row 1, column \d+ is (nan|-?inf)"):
            quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", target, **more)
    assert left(tmp_path) == []


@pytest.mark.parametrize("file_type", [t.name for t in FILE_TYPES if t.name not in ("F32", "BF16")])
def test_weights_too_large_for_a_scale(file_type: str, tmp_path: Path) -> None:
    """3e38 everywhere; the numbers of A23 that all types take: 1e-8, and a million times larger."""
    entries = {NAME: Entry(np.ones((1, 512), np.float32), np.ones(1, np.int64))}
    options = Options(imatrix=Imatrix(entries, chunk_size=1), overwrite=True)
    large = write(tmp_path / "in.gguf", {NAME: np.full((2, 512), 3e38, np.float32)})
    if file_type != "MXFP4_MOE":
        with pytest.raises(
            QuantError, match=rf"'{NAME}': row 0, column 0 is 3.\d*e\+38: too large"
        ):
            quantize_file(large, tmp_path / "out.gguf", file_type, options)
        assert left(tmp_path) == []
    tiny = write(tmp_path / "in.gguf", {NAME: normal(2, 512) * np.float32(1e-6)})
    quantize_file(tiny, tmp_path / "out.gguf", file_type, options)
    with GGUFFile(tmp_path / "out.gguf", type_sizes=codec.type_sizes) as file:
        info = file.tensor(NAME)
        kind = codec.get(info.type_id)
        assert np.isfinite(kind.dequantize(file.bytes(info).view(kind.block))).all()


def test_a_weight_that_overflows_is_named_where_it_is(tmp_path: Path) -> None:
    array = normal(2, 512)
    array[1, 77] = 9e6  # 9e6 / 127 is more than a half can hold
    source = write(tmp_path / "in.gguf", {NAME: array})
    with pytest.raises(QuantError, match=r"row 1, column 77 is 9000000.0: too large for q8_0"):
        quantize_file(source, tmp_path / "out.gguf", "q8_0")
    with pytest.raises(QuantError, match=r"row 1, column 77 is 9000000.0: too large for f16"):
        quantize_file(source, tmp_path / "out.gguf", "f16")
    assert left(tmp_path) == []
    quantize_file(source, tmp_path / "out.gguf", "bf16")
    job = quantize_file(source, tmp_path / "out.gguf", "q8_0", allow_nonfinite=True, overwrite=True)
    assert "too large for q8_0" in job.warnings[0]


# -- outputs


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_input_is_never_the_output(tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    models.write("names", source)
    before = digest(source)
    (tmp_path / "soft.gguf").symlink_to(source)
    os.link(source, tmp_path / "hard.gguf")
    for target in (source, tmp_path / "soft.gguf", tmp_path / "hard.gguf", tmp_path / "./in.gguf"):
        with pytest.raises(OutputError, match="is the input"):
            quantize_file(source, target, "q8_0", overwrite=True)
    assert digest(source) == before
    imatrix = tmp_path / "imatrix.gguf"
    entry = Entry(np.ones((1, 256), np.float32), np.ones(1, np.int64))
    importance.write_gguf(Imatrix({"blk.0.attn_v.weight": entry}, chunk_size=1), imatrix)
    with pytest.raises(OutputError, match="is the input"):
        quantize_file(source, imatrix, "q8_0", imatrix=imatrix, overwrite=True)
    assert importance.read(imatrix).entries


def test_outputs_that_cannot_be_written(tmp_path: Path) -> None:
    source = tmp_path / "in.gguf"
    models.write("names", source)
    (tmp_path / "there.gguf").write_text("precious")
    for target, message in {
        "none/out.gguf": "does not exist",
        "there.gguf": "exists already",
        ".": "is a folder",
    }.items():
        with pytest.raises(OutputError, match=message):
            quantize_file(source, tmp_path / target, "q8_0")
    assert (tmp_path / "there.gguf").read_text() == "precious"
    assert left(tmp_path) == ["there.gguf"]


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    source = tmp_path / "in.gguf"
    models.write("names", source)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(OutputError, match=r"needs \d+ bytes, 1000 bytes free"):
        quantize_file(source, tmp_path / "out.gguf", "q8_0")
    assert left(tmp_path) == []


def test_a_file_that_ends_while_it_is_read(tmp_path: Path) -> None:
    from llamapy.tasks import quantize

    source = tmp_path / "in.gguf"
    models.write("names", source)
    with quantize.prepare(source, "q8_0") as job:
        os.truncate(source, source.stat().st_size - 5000)
        with pytest.raises(FileFormatError, match="truncated"):
            quantize.run(job, tmp_path / "out.gguf")
    assert left(tmp_path) == []


# -- what is refused from the header


def test_quantized_inputs_are_not_quantized_unasked(tmp_path: Path) -> None:
    models.write("names", tmp_path / "in.gguf")
    quantize_file(tmp_path / "in.gguf", tmp_path / "q.gguf", "q4_0", pure=True)
    with pytest.raises(QuantError, match="is already q4_0"):
        quantize_file(tmp_path / "q.gguf", tmp_path / "out.gguf", "q8_0")
    quantize_file(tmp_path / "q.gguf", tmp_path / "copy.gguf", "q4_0", pure=True)
    assert digest(tmp_path / "copy.gguf") == digest(tmp_path / "q.gguf")  # same type: bytes stay


def test_integers_are_no_weights(tmp_path: Path) -> None:
    source = write(tmp_path / "in.gguf", {NAME: np.ones((2, 64), np.int32)}, 26)
    with pytest.raises(ModelError, match=r"holds integers \(i32\)"):
        quantize_file(source, tmp_path / "out.gguf", "q8_0")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tensor_types": [("(", "q8_0")]}, LlamapyError, "is not a regular expression"),
        ({"tensor_types": [("x", "q9_9")]}, QuantError, "unknown tensor type 'q9_9'"),
        ({"output": "i32"}, QuantError, "no tensor can be made i32"),
        ({"token_embedding": "q8_K"}, QuantError, "no tensor can be made q8_K"),
        ({"prune_layers": [9]}, LlamapyError, "no layers 9"),
        ({"include_weights": ["a"], "exclude_weights": ["b"]}, LlamapyError, "do not go together"),
    ],
)
def test_options_that_cannot_be(
    options: dict[str, Any], error: type[LlamapyError], message: str, tmp_path: Path
) -> None:
    models.write("names", tmp_path / "in.gguf")
    with pytest.raises(error, match=message):
        quantize_file(tmp_path / "in.gguf", tmp_path / "out.gguf", "q8_0", **options)
    assert left(tmp_path) == []


def test_patterns_that_decide_nothing_are_told(tmp_path: Path) -> None:
    models.write("names", tmp_path / "in.gguf")
    job = quantize_file(
        tmp_path / "in.gguf", tmp_path / "a.gguf", "q8_0", tensor_types=[("nothing", "q4_0")]
    )
    assert job.warnings == ["the pattern 'nothing' (q4_0) decides no tensor"]
    job = quantize_file(
        tmp_path / "in.gguf", tmp_path / "b.gguf", "f16", tensor_types=[("attn_v", "q4_0")]
    )
    assert job.warnings == ["--tensor-type has no effect: F16 is not a quantized type"]


def test_a_function_chooses(tmp_path: Path) -> None:
    models.write("llama", tmp_path / "in.gguf")
    asked = []

    def choose(name: str, shape: tuple[int, ...], layer: int) -> str | None:
        asked.append((name, shape, layer))
        return {0: "keep", 1: "q8_0"}.get(layer)

    job = quantize_file(tmp_path / "in.gguf", tmp_path / "o.gguf", "q4_k_m", choose=choose)
    kinds = {one.name: one.kind for one in job.plan.tensors}
    assert kinds["blk.0.attn_v.weight"] == "f32" and kinds["blk.1.attn_v.weight"] == "q8_0"
    assert kinds["blk.2.attn_v.weight"] == "q4_K" and kinds["blk.1.attn_norm.weight"] == "f32"
    assert ("blk.3.ffn_up.weight", (256, 2), 3) in asked
    assert not [name for name, _, _ in asked if "norm" in name]


# -- memory and interruption

CHILD = """
import resource, sys
from llamapy.tasks.quantize import quantize_file
source, target, kind, limit = sys.argv[1:]
quantize_file(source, sys.argv[2] + ".warm", kind, threads=2)  # compiled code and caches
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
quantize_file(sys.argv[4], target, kind, threads=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["q8_0", "f16"])
def test_memory_is_a_few_pieces_never_a_tensor(kind: str, tmp_path: Path) -> None:
    """Three times the largest tensor as float32 is the promise; it is less than one time."""
    small = write(tmp_path / "small.gguf", {NAME: normal(64, 1024)})
    rows = np.random.RandomState(1).standard_normal((64, 1024)).astype("<f2")
    large, n_rows = tmp_path / "large.gguf", 64 * 1024
    writer = GGUFWriter(large)
    writer.add("general.architecture", "llama")
    writer.add_tensor(NAME, (1024, n_rows), 1, n_rows * 2048)
    writer.write([(rows.tobytes() for _ in range(n_rows // 64))])
    done = subprocess.run(
        [sys.executable, "-c", CHILD, small, tmp_path / "out.gguf", kind, large],
        capture_output=True,
        text=True,
        check=True,
    )
    as_float32 = 4 * 1024 * n_rows  # 256 MiB
    assert int(done.stdout) * 1024 < as_float32 / 3


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
from llamapy.cli.main import main
main(["quantize", sys.argv[1], sys.argv[2], "iq3_s", "--pure", "-t", "2"])
"""


def test_an_interruption_leaves_nothing(tmp_path: Path) -> None:
    source, n_rows = tmp_path / "in.gguf", 1 << 16
    rows = normal(64, 1024).astype("<f2")
    write(source, {NAME: rows}, 1)
    quantize_file(source, tmp_path / "out.gguf", "iq3_s", pure=True)  # compiled from now on
    (tmp_path / "out.gguf").unlink()
    writer = GGUFWriter(source)
    writer.add("general.architecture", "llama")
    writer.add_tensor(NAME, (1024, n_rows), 1, n_rows * 2048)
    writer.write([(rows.tobytes() for _ in range(n_rows // 64))])
    target = tmp_path / "out.gguf"
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, source, target], stderr=subprocess.PIPE, text=True
    ) as child:
        _wait_until(lambda: _cpu_seconds(child.pid) > 1.5)
        child.send_signal(signal.SIGINT)
        start = time.monotonic()
        message = child.communicate(timeout=30)[1]
        seconds = time.monotonic() - start
    assert child.returncode == 130 and message == "llamapy: interrupted\n"
    assert seconds < 5  # one on a machine that is not busy
    assert left(tmp_path) == []


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)


def _cpu_seconds(pid: int) -> float:
    """Processor time of a process, from /proc; anything elapsed where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("inf")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_choices_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Choices().pure = True  # type: ignore[misc]
