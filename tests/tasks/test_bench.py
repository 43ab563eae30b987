"""Benchmarks: what is measured, the five forms, profiles and traces. Speed itself is not tested."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llamapy.cli.main import run
from llamapy.core.errors import UsageError
from llamapy.engine.trace import Event
from llamapy.runtime.context import Context
from llamapy.tasks import bench, bench_output
from llamapy.tasks.bench import Case, Result
from llamapy.tasks.profile import by_op, chrome, profile
from tests.tasks.conftest import TINY

MODEL = str(TINY / "llama.gguf")

# The fields of llama-bench's json, in its order.
FIELDS = [
    "build_commit",
    "build_number",
    "cpu_info",
    "gpu_info",
    "backends",
    "model_filename",
    "model_type",
    "model_size",
    "model_n_params",
    "n_batch",
    "n_ubatch",
    "n_threads",
    "cpu_mask",
    "cpu_strict",
    "poll",
    "type_k",
    "type_v",
    "n_gpu_layers",
    "n_cpu_moe",
    "split_mode",
    "main_gpu",
    "no_kv_offload",
    "flash_attn",
    "devices",
    "tensor_split",
    "tensor_buft_overrides",
    "load_mode",
    "lazy_mode",
    "embeddings",
    "no_op_offload",
    "no_host",
    "repack",
    "fit_target",
    "fit_min_ctx",
    "n_prompt",
    "n_gen",
    "n_depth",
    "test_time",
    "avg_ns",
    "stddev_ns",
    "avg_ts",
    "stddev_ts",
]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("512", [512]),
        ("1,2,8", [1, 2, 8]),
        ("1-4", [1, 2, 3, 4]),
        ("0-512+256,7", [0, 256, 512, 7]),
        ("1-16*2", [1, 2, 4, 8, 16]),
    ],
)
def test_lists(text: str, found: list[int]) -> None:
    assert bench.numbers(text) == found


@pytest.mark.parametrize("text", ["", "a", "1,", "-3", "4-1", "1-9*1", "0-9*2", "1-9+0", "1.5"])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(UsageError):
        bench.numbers(text)


def test_combinations_are_in_the_order_of_llama_bench() -> None:
    found = bench.cases(
        ["a", "b"], n_prompt=[8, 0], n_gen=[4], pairs=[(2, 3)], n_depth=[0, 5], n_threads=[1, 2]
    )
    tests = ["pp8", "tg4", "pp2+tg3", "pp8 @ d5", "tg4 @ d5", "pp2+tg3 @ d5"]
    assert [(c.model, c.n_threads, c.test) for c in found] == [
        (model, threads, test) for model in "ab" for threads in (1, 2) for test in tests
    ]
    with pytest.raises(UsageError, match="nothing to measure"):
        bench.cases(["a"], n_prompt=[0], n_gen=[0])


def test_mean_and_deviation_are_stable() -> None:
    values = [1e9 + d for d in (0.25, 0.5, 0.125, 0.75)]
    assert bench.mean(values) == statistics.mean(values)
    assert bench.deviation(values) == pytest.approx(statistics.stdev(values), rel=1e-9)
    assert bench.deviation([5.0]) == 0


class Counted(Context):
    """Notes what is decoded, and from which position on."""

    seen: list[tuple[int, int]] = []

    def decode(self, batch: Any, *, copy: bool = True) -> Any:
        n = len(batch) if isinstance(batch, list) else len(batch.tokens)
        self.seen.append((self.memory.pos_max(0) + 1, n))
        return super().decode(batch, copy=copy)


def test_what_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "Context", Counted)
    Counted.seen = []
    case = Case(MODEL, n_prompt=10, n_gen=2, n_depth=6, n_batch=8, n_ubatch=4)
    (result,) = bench.run([case], reps=2, backend="reference")
    warm = [(0, 6), (6, 8), (14, 2), (16, 1)]
    each = [(6, 8), (14, 2), (16, 1), (17, 1)]
    assert Counted.seen == warm + each + each
    assert len(result.samples_ns) == 2
    assert result.samples_ts == [12e9 / ns for ns in result.samples_ns]


def test_compilation_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Context):
        def decode(self, batch: Any, *, copy: bool = True) -> Any:
            hook = self.engine.backends[0].on_compile  # type: ignore[attr-defined]
            hook("kernel", 0, 1)
            time.sleep(0.3)
            hook("", 1, 1)
            return super().decode(batch, copy=copy)

    monkeypatch.setattr(bench, "Context", Slow)
    heard: list[str] = []
    (result,) = bench.run(
        [Case(MODEL, n_prompt=4, n_threads=1)],
        reps=1,
        on_compile=lambda kernel, done, total: heard.append(kernel),
    )
    assert "kernel" in heard
    assert result.samples_ns[0] < 250e6


RESULT = Result(
    Case(MODEL, n_prompt=16, n_threads=2, n_ubatch=8), "llama", "Q4_K - Medium", 3 << 29,
    1_235_814_432, "2026-01-01T00:00:00Z", [2_000_000, 4_000_000],
)  # fmt: skip


def output(form: str) -> str:
    made = bench_output.form(form, [RESULT.case])
    parts = [made.head(), made.row(RESULT), made.row(RESULT), made.foot()]
    return "\n".join(part for part in parts if part is not None) + "\n"


def check(row: dict[str, Any]) -> None:
    assert list(row)[: len(FIELDS)] == FIELDS
    assert int(row["n_prompt"]) == 16 and int(row["avg_ns"]) == 3_000_000
    assert float(row["avg_ts"]) == pytest.approx(6000)
    assert float(row["stddev_ts"]) == pytest.approx(statistics.stdev([8000, 4000]))
    assert int(row["stddev_ns"]) == int(statistics.stdev([2e6, 4e6]))


def test_json() -> None:
    for row in json.loads(output("json")):
        check(row)
        assert row["samples_ns"] == [2_000_000, 4_000_000]
        assert row["samples_ts"] == [8000.0, 4000.0]
        assert row["repack"] is True


def test_jsonl() -> None:
    lines = output("jsonl").splitlines()
    assert len(lines) == 2
    for line in lines:
        check(json.loads(line))


def test_csv() -> None:
    text = output("csv")
    assert text.splitlines()[0] == ",".join(FIELDS)
    assert all(f.startswith('"') and f.endswith('"') for f in text.splitlines()[1].split(",") if f)
    for row in csv.DictReader(io.StringIO(text)):
        check(row)


def test_sql() -> None:
    with sqlite3.connect(":memory:") as base:
        base.row_factory = sqlite3.Row
        base.executescript(output("sql"))
        for row in base.execute("SELECT * FROM llama_bench"):
            check(dict(row))
            assert isinstance(row["avg_ts"], float) and isinstance(row["model_size"], int)
    base.close()


def test_markdown() -> None:
    lines = output("md").splitlines()
    assert lines[0] == (
        "| model                          |       size |     params | backend    | threads |"
        " n_ubatch |            test |                  t/s |"
    )
    assert lines[1] == (
        "| ------------------------------ | ---------: | ---------: | ---------- | ------: |"
        " -------: | --------------: | -------------------: |"
    )
    assert lines[2] == (
        "| llama 1.24 B Q4_K - Medium     |   1.50 GiB |     1.24 B | CPU        |       2 |"
        "        8 |            pp16 |    6000.00 ± 2828.43 |"
    )
    assert lines[-1].startswith("build: llamapy-")


# -- profiles and traces


def test_a_trace_on_both_threads_adds_up() -> None:
    case = Case(MODEL, n_prompt=24, n_threads=2)
    (result,) = bench.run([case], reps=1, traced=True)
    events, threads = result.events, result.case.n_threads
    assert {"mul_mat", "rms_norm", "rope", "set_rows"} <= {e.op for e in events}
    assert all(len(e.spans) == threads for e in events)
    lines = profile(events)
    assert sum(line.share for line in lines) == pytest.approx(1)
    assert sum(by_op(lines).values()) == pytest.approx(1)
    assert [line.seconds for line in lines] == sorted((li.seconds for li in lines), reverse=True)
    spans = np.array([e.spans for e in events])  # [node, thread, 2]
    assert (spans[..., 1] >= spans[..., 0]).all()
    assert (spans[1:, :, 0] >= spans[:-1, :, 1]).all()  # a thread does one node after the other
    whole = (spans[..., 1].max() - spans[0, 0, 0]) / 1e9
    assert sum(e.seconds for e in events) == pytest.approx(whole, rel=1e-6)


def test_chrome_trace() -> None:
    events = [
        Event("cpu", "a", "mul_mat", "q4_0", 1e-6, ((5000, 6000), (5500, 7000))),
        Event("cpu", "b", "add", "f32", 2e-6, ((7000, 9000), (7000, 7100))),
        Event("reference", "c", "add", "f32", 1e-6),
    ]
    found = json.loads(json.dumps(chrome(events)))["traceEvents"]
    slices = [s for s in found if s["ph"] == "X"]
    assert [(s["name"], s["tid"], s["ts"], s["dur"]) for s in slices] == [
        ("a", 0, 0.0, 1.0),
        ("a", 1, 0.5, 1.5),
        ("b", 0, 2.0, 2.0),
        ("b", 1, 2.0, 0.1),
    ]
    names = {(s["pid"], s["args"]["name"]) for s in found if s["name"] == "process_name"}
    assert names == {(0, "cpu"), (1, "reference")}


# -- the command


def test_stdout_is_only_data(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    command = ["bench", "-m", MODEL, "-p", "8", "-n", "2", "-r", "2", "-o", "json", "--progress"]
    assert run([*command, "--profile", "--trace", str(trace)]) == 0
    out, err = capfd.readouterr()
    assert [(row["n_prompt"], row["n_gen"]) for row in json.loads(out)] == [(8, 0), (0, 2)]
    assert "benchmark 2/2: tg2: run 2/2" in err
    assert "matrix products: " in err and "mul_mat" in err
    assert json.loads(trace.read_text())["traceEvents"]


@pytest.mark.parametrize(
    "wrong", [["-o", "xml"], ["-p", "x"], ["-ctk", "q9"], ["-fa", "maybe"], ["-pg", "3"]]
)
def test_misuse(wrong: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "-m", MODEL, *wrong]) == 2
    assert capfd.readouterr().out == ""
