"""The five forms of a benchmark's results, with llama-bench's field names, columns and widths.

Each form is text before the first result, for each result, and after the last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from llamapy import __version__
from llamapy.core.errors import UsageError
from llamapy.native.levels import level
from llamapy.tasks.bench import Case, Result, cpu_name, deviation, mean

NUMBER = 0  # build_number: releases of llamapy are not counted

_BOOLS = {"no_kv_offload", "cpu_strict", "embeddings", "no_host", "repack"}
_SHOWN = {"n_threads": "threads", "flash_attn": "fa", "repack": "rpk", "load_mode": "lm"}
_WIDTHS = {"size": 10, "params": 10, "n_threads": 7, "n_batch": 7, "n_ubatch": 8, "test": 15}
_WIDTHS |= {"model": -30, "backend": -10, "type_k": 6, "type_v": 6, "flash_attn": 3, "t/s": 20}
_WIDTHS |= {"repack": 3, "load_mode": 10}
# Columns that are shown when they are not what a Case has by default.
_OPTIONAL = ("n_batch", "n_ubatch", "type_k", "type_v", "flash_attn", "load_mode", "repack")


def values(result: Result) -> dict[str, Any]:
    """The 42 fields of one result, in order."""
    case = result.case
    ns, ts = [float(n) for n in result.samples_ns], result.samples_ts
    return {
        "build_commit": f"llamapy-{__version__}",
        "build_number": NUMBER,
        "cpu_info": cpu_name(),
        "gpu_info": "",
        "backends": "CPU",
        "model_filename": case.model,
        "model_type": model_type(result),
        "model_size": result.n_bytes,
        "model_n_params": result.n_params,
        "n_batch": case.n_batch,
        "n_ubatch": case.n_ubatch,
        "n_threads": case.n_threads,
        "cpu_mask": "0x0",
        "cpu_strict": False,
        "poll": 50,
        "type_k": case.type_k,
        "type_v": case.type_v,
        "n_gpu_layers": -1,
        "n_cpu_moe": 0,
        "split_mode": "layer",
        "main_gpu": 0,
        "no_kv_offload": False,
        "flash_attn": case.flash_attn,
        "devices": "auto",
        "tensor_split": "0.00",
        "tensor_buft_overrides": "none",
        "load_mode": load_mode(case),
        "lazy_mode": "auto",
        "embeddings": False,
        "no_op_offload": 0,
        "no_host": False,
        "repack": case.repack,
        "fit_target": 0,
        "fit_min_ctx": 0,
        "n_prompt": case.n_prompt,
        "n_gen": case.n_gen,
        "n_depth": case.n_depth,
        "test_time": result.started,
        "avg_ns": int(mean(ns)),
        "stddev_ns": int(deviation(ns)),
        "avg_ts": round(mean(ts), 6),
        "stddev_ts": round(deviation(ts), 6),
    }


def model_type(result: Result) -> str:
    """Architecture, size and file type: "llama 134.52 M Q4_1"."""
    return f"{result.arch} {_params(result.n_params)} {result.file_type}"


def load_mode(case: Case) -> str:
    return "auto" if case.mmap else "none"


def _params(n: int) -> str:
    return f"{n / 1e6:.2f} M" if n < 10**9 else f"{n / 1e9:.2f} B"


def _size(n: int) -> str:
    return f"{n / 2**20:.2f} MiB" if n < 2**30 else f"{n / 2**30:.2f} GiB"


def _text(value: Any) -> str:
    """As in csv and sql: booleans are 0 and 1, other numbers have six places."""
    if isinstance(value, bool):
        return str(int(value))
    return f"{value:.6f}" if isinstance(value, float) else str(value)


class Form:
    """`head()`, `row(result)`, `foot()`: what to print, without the last newline; None: nothing."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.cases = cases
        self.n_rows = 0

    def head(self) -> str | None:
        return None

    def row(self, result: Result) -> str | None:
        raise NotImplementedError

    def foot(self) -> str | None:
        return None


class Nothing(Form):
    def row(self, result: Result) -> str | None:
        return None


class Csv(Form):
    def head(self) -> str | None:
        return ",".join(FIELDS)

    def row(self, result: Result) -> str | None:
        quoted = [_text(v).replace('"', '""') for v in values(result).values()]
        return ",".join(f'"{text}"' for text in quoted)


class Jsonl(Form):
    def row(self, result: Result) -> str | None:
        return json.dumps(self._all(result), ensure_ascii=True)

    def _all(self, result: Result) -> dict[str, Any]:
        samples = {"samples_ns": result.samples_ns, "samples_ts": result.samples_ts}
        return values(result) | samples


class Json(Jsonl):
    def head(self) -> str | None:
        return "["

    def row(self, result: Result) -> str | None:
        self.n_rows += 1
        lines = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in self._all(result).items()]
        return ",\n" * (self.n_rows > 1) + "  {\n" + ",\n".join(lines) + "\n  }"

    def foot(self) -> str | None:
        return "]"


class Sql(Form):
    def head(self) -> str | None:
        sample = {name: _sql_type(name) for name in FIELDS}
        lines = ",\n".join(f"  {name} {kind}" for name, kind in sample.items())
        return f"CREATE TABLE IF NOT EXISTS llama_bench (\n{lines}\n);\n"

    def row(self, result: Result) -> str | None:
        found = values(result)
        quoted = ", ".join("'{}'".format(_text(v).replace("'", "''")) for v in found.values())
        return f"INSERT INTO llama_bench ({', '.join(found)}) VALUES ({quoted});"


class Markdown(Form):
    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__(cases)
        given = [name for name in _OPTIONAL if self._is_told(name)]
        self.columns = ["model", "size", "params", "backend", "n_threads", *given, "test", "t/s"]

    def _is_told(self, name: str) -> bool:
        if name == "load_mode":
            return any(not case.mmap for case in self.cases)
        return any(getattr(case, name) != DEFAULTS[name] for case in self.cases)

    def head(self) -> str | None:
        names = [self._cell(c, _SHOWN.get(c, c)) for c in self.columns]
        widths = [_WIDTHS[c] for c in self.columns]
        rules = ["-" * (abs(w) - 1) + (":" if w > 0 else "-") for w in widths]
        return f"| {' | '.join(names)} |\n| {' | '.join(rules)} |"

    def row(self, result: Result) -> str | None:
        ts = result.samples_ts
        special = {
            "model": model_type(result),
            "size": _size(result.n_bytes),
            "params": _params(result.n_params),
            "backend": "CPU",
            "test": result.case.test,
            "t/s": f"{mean(ts):.2f} ± {deviation(ts):.2f}",
        }
        found = {k: _text(v) for k, v in values(result).items()} | special
        return f"| {' | '.join(self._cell(c, found[c]) for c in self.columns)} |"

    def _cell(self, column: str, text: str) -> str:
        width = _WIDTHS[column]
        return text.ljust(-width) if width < 0 else text.rjust(width)

    def foot(self) -> str | None:
        return f"\nbuild: llamapy-{__version__} ({NUMBER}), kernels for {level()}"


def _sql_type(name: str) -> str:
    kind = _KINDS[name]
    return "TEXT" if kind is str else "REAL" if kind is float else "INTEGER"


DEFAULTS = {f.name: f.default for f in fields(Case)}
_SAMPLE = values(Result(Case(""), "", "", 0, 0, "", [1]))
_KINDS = {name: type(value) for name, value in _SAMPLE.items()}
FIELDS = tuple(_SAMPLE)
FORMS: dict[str, Callable[[Sequence[Case]], Form]] = {
    "none": Nothing,
    "csv": Csv,
    "json": Json,
    "jsonl": Jsonl,
    "md": Markdown,
    "sql": Sql,
}


def form(name: str, cases: Sequence[Case]) -> Form:
    """The form of this name. UsageError lists them."""
    if name not in FORMS:
        raise UsageError(f"no output form {name!r}", hint=f"there are {', '.join(FORMS)}")
    return FORMS[name](cases)
