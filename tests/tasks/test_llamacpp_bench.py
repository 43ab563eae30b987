"""The forms of llama-bench's results (fixtures/measures, tools/record_measures.py): ours have its
fields, kinds, columns, widths and order."""

from __future__ import annotations

import csv
import io
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from llamapy.tasks import bench_output
from llamapy.tasks.bench import Case, Result, cases, run
from tests.tasks.conftest import TINY

FOLDER = Path(__file__).parents[2] / "fixtures" / "measures"
FORMS = ("json", "jsonl", "csv", "sql", "md")
OURS = {"build_commit", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts"}
OURS |= {"samples_ns", "samples_ts", "cpu_info", "model_filename", "model_type"}


def said(name: str) -> str:
    return (FOLDER / name).read_text()


@pytest.fixture(scope="module")
def benched() -> dict[str, str]:
    """Our output in each form, of the test that llama-bench ran."""
    wanted = cases([str(TINY / "llama.gguf")], n_prompt=[8], n_gen=[4], n_threads=[1])
    results = list(run(wanted, reps=2, warmup=False))
    return {name: printed(name, wanted, results) for name in FORMS}


def printed(name: str, wanted: list[Case], results: list[Result]) -> str:
    form = bench_output.form(name, wanted)
    texts = [form.head(), *(form.row(r) for r in results), form.foot()]
    return "".join(f"{text}\n" for text in texts if text is not None)


def test_json_has_their_keys_kinds_and_values(benched: dict[str, str]) -> None:
    ours, theirs = json.loads(benched["json"]), json.loads(said("bench.json"))
    assert len(ours) == len(theirs) == 2
    for mine, other in zip(ours, theirs):
        assert list(mine) == list(other)
        assert [type(v) for v in mine.values()] == [type(v) for v in other.values()]
        unlike = {key for key in mine if mine[key] != other[key]} - OURS
        assert not unlike, {key: (mine[key], other[key]) for key in unlike}
        assert len(mine["samples_ns"]) == len(other["samples_ns"]) == 2
        assert mine["model_type"].split()[0] == other["model_type"].split()[0] == "llama"
        assert mine["model_type"].endswith("(guessed) all F32")
        assert other["model_type"].endswith("(guessed) all F32")


def test_lines_have_their_shape(benched: dict[str, str]) -> None:
    """Names, quotes and brackets of every line; only what is inside differs."""
    for name, quoted in (("csv", r'"[^"]*"'), ("sql", r"'[^']*'")):
        both = (benched[name], said(f"bench.{name}"))
        ours, theirs = (re.sub(quoted, "?", text).strip() for text in both)
        assert ours == theirs, name
    lines = [[*map(json.loads, t.splitlines())] for t in (benched["jsonl"], said("bench.jsonl"))]
    assert [list(row) for row in lines[0]] == [list(row) for row in lines[1]]


def test_sql_makes_their_table(benched: dict[str, str]) -> None:
    found = []
    for text in (benched["sql"], said("bench.sql")):
        base = sqlite3.connect(":memory:")
        base.executescript(text)
        table = base.execute("PRAGMA table_info(llama_bench)").fetchall()
        rows = base.execute("SELECT n_prompt, n_gen, repack, poll FROM llama_bench").fetchall()
        found.append((table, rows))
        base.close()
    assert found[0] == found[1]


def test_csv_holds_what_json_holds(benched: dict[str, str]) -> None:
    mine, other = (
        list(csv.DictReader(io.StringIO(t))) for t in (benched["csv"], said("bench.csv"))
    )
    assert [list(row) for row in mine] == [list(row) for row in other]
    for a, b in zip(mine, other, strict=True):
        assert {k for k in a if a[k] != b[k]} <= OURS


def test_markdown_has_their_columns(benched: dict[str, str]) -> None:
    assert table(benched["md"]) == table(said("bench.md"))
    told: dict[str, Any] = {"n_batch": [64], "n_ubatch": [32], "flash_attn": [1]}
    told |= {"type_k": ["bf16"], "type_v": ["bf16"], "n_threads": [1], "n_depth": [16]}
    wanted = cases([str(TINY / "llama.gguf")], n_prompt=[8], n_gen=[4], pairs=[(8, 4)], **told)
    facts = ("llama", "all F32", 234432, 58608, "")
    results = [Result(case, *facts, samples_ns=[10**6]) for case in wanted]
    assert table(printed("md", wanted, results)) == table(said("bench-told.md"))


def table(text: str) -> list[str]:
    """The lines of a table without the figure, and without the size in the model's name."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [line.rpartition("|")[0].rpartition("|")[0] for line in lines[2:]]
    assert all(len(line) == len(lines[0]) for line in lines)
    return [*lines[:2], *(row[:8] + row[33:] for row in rows)]


def test_rows_come_in_their_order() -> None:
    rows = list(csv.DictReader(io.StringIO(said("bench-order.csv"))))
    wanted = cases(
        ["llama", "llama-moe"],
        n_prompt=[4],
        n_gen=[2],
        pairs=[(4, 2)],
        n_depth=[0, 8],
        n_batch=[8, 16],
        n_ubatch=[4, 8],
        type_k=["f16", "bf16"],
        flash_attn=[0, 1],
        n_threads=[1, 2],
    )
    ours = [{name: str(getattr(case, name)) for name in rows[0]} for case in wanted]
    assert len(ours) == len(rows) == 384 and ours == rows
