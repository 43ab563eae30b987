"""How near a model's speed comes to what this machine allows: `roofline.py MODEL.gguf ...`.

Measured on the machine, in machine code of our own: bytes a second that the threads read together,
and multiplications a second, of float32 and 16-bit numbers, of weights that need a whole byte with
bytes, and of smaller ones (what prefill runs on without AMX: by type of the weights). Decode cannot
be faster than reading every weight once a token, prefill not faster than the products of a token,
each at the peak of its kind. Medians of rounds in turns with the model's own runs: neighbours slow
down both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fetch_models
import numpy as np

from llamapy.backend.cpu import values
from llamapy.backend.cpu.kernels import mul_mat_panel
from llamapy.backend.cpu.step import Machine
from llamapy.core import settings
from llamapy.gguf.reader import GGUFFile
from llamapy.native import compiled, mem, simd
from llamapy.quants import codec

BYTES = 1 << 28  # read by all threads together
STEPS = 4_000_000
PART = 1 << 16  # bytes of a thread that multiplies
UNITS = ("float32", "16-bit", "whole bytes", "8-bit")


@compiled
def read(address, n):  # type: ignore[no-untyped-def]
    """Every byte once; the total keeps the compiler from leaving it out."""
    a, b = simd.zeros_i32x16(), simd.zeros_i32x16()
    for i in range(0, n, 128):
        a = a + simd.load_i32x16(address + i)
        b = b + simd.load_i32x16(address + i + 64)
    return simd.total_i32x16(a + b)


@compiled
def fma(address, n):  # type: ignore[no-untyped-def]
    """96 products a step, from registers."""
    x, a, b = simd.load_f32x16(address), simd.zeros_f32x16(), simd.zeros_f32x16()
    c, d, e, f = a, b, a, b
    for _ in range(n):
        a, b = simd.fma_f32x16(x, x, a), simd.fma_f32x16(x, x, b)
        c, d = simd.fma_f32x16(x, x, c), simd.fma_f32x16(x, x, d)
        e, f = simd.fma_f32x16(x, x, e), simd.fma_f32x16(x, x, f)
    return simd.total_f32x16(a + b + c + d + e + f)


@compiled
def pairs(address, n):  # type: ignore[no-untyped-def]
    """128 products a step: sixteen rows times four columns, as in a panel, from first-level
    cache."""
    a = simd.zeros_i32x16()
    b, c, d = a, a, a
    for i in range(n):
        u, x = simd.load_i16x32(address + 64 * (i & 15)), address + 1024 + 4 * (i & 15)
        a = simd.pair_step(a, u, simd.pair_i16x32(x))
        b = simd.pair_step(b, u, simd.pair_i16x32(x + 1024))
        c = simd.pair_step(c, u, simd.pair_i16x32(x + 2048))
        d = simd.pair_step(d, u, simd.pair_i16x32(x + 3072))
    return simd.total_i32x16(a + b + c + d)


@compiled
def quads(address, n, wide):  # type: ignore[no-untyped-def]
    """2048 products a step: a group of 32 of a panel times four columns, scaled, added to results
    in memory, as prefill does it, all in first-level cache. wide: for weights of whole bytes."""
    scales, out = address + 4096, address + 8192
    for i in range(n):
        x = address + 1024 + 128 * (i & 15)
        if wide:
            simd.wide_quads_8(address, x, scales, scales, out)
        else:
            simd.quads_8(address, x, scales, scales, out)
    return mem.f32(out, 0)


@dataclass(frozen=True)
class Work:
    """macs: products a token, outputs included; prefill: those without the output, which a prompt
    has only once, by what they run on; n_bytes: of all weights that a token meets."""

    macs: float
    prefill: dict[str, float]
    n_bytes: float


def work(path: Path) -> Work:
    """From the file: matrices, the embedding only where it is the output, experts by how many of
    them a token meets."""
    macs = n_bytes = 0.0
    prefill: dict[str, float] = {}
    with GGUFFile(path) as file:
        tied = "output.weight" not in file
        arch = str(file.metadata["general.architecture"])
        n_expert = _count(file.metadata.get(f"{arch}.expert_count"))
        n_used = _count(file.metadata.get(f"{arch}.expert_used_count"))
        for tensor in file.tensors:
            output = tensor.name == ("token_embd.weight" if tied else "output.weight")
            if len(tensor.ne) < 2 or (tensor.name == "token_embd.weight" and not output):
                continue
            share = n_used / n_expert if "_exps." in tensor.name else 1.0
            macs += tensor.n_elements * share
            n_bytes += tensor.n_bytes * share
            if not output:
                runs_on = unit(codec.get(tensor.type_id))
                prefill[runs_on] = prefill.get(runs_on, 0.0) + tensor.n_elements * share
    return Work(macs, prefill, n_bytes)


def unit(kind: type[codec.Codec]) -> str:
    """What multiplies weights of this type in prefill."""
    if kind.n_values == 1:
        return "float32"
    if mul_mat_panel.form_for(kind, Machine(activation_bits=settings.activation_bits())) == "x16":
        return "16-bit"
    return "whole bytes" if values.spans_more_than_seven_bits(kind) else "8-bit"


def _count(value: object) -> int:
    """Experts: as many as the file says, or one."""
    return value if isinstance(value, int) and value else 1


def together(n_threads: int, part: Callable[[int], Any]) -> float:
    """Seconds until all threads have done their part."""
    with ThreadPoolExecutor(n_threads) as pool:
        start = time.perf_counter()
        list(pool.map(part, range(n_threads)))
        return time.perf_counter() - start


def peaks(n_threads: int, data: np.ndarray[Any, Any]) -> dict[str, float]:
    """Bytes, and products, a second."""
    size, at = BYTES // n_threads // 128 * 128, data.ctypes.data

    def rate(products: int, kernel: Callable[..., Any], times: int, *more: bool) -> float:
        seconds = together(n_threads, lambda i: kernel(at + PART * i, times, *more))
        return products * times * n_threads / seconds

    return {
        "read": BYTES / together(n_threads, lambda i: read(at + i * size, size)),
        "float32": rate(96, fma, STEPS),
        "16-bit": rate(128, pairs, STEPS),
        "whole bytes": rate(2048, quads, STEPS // 8, True),
        "8-bit": rate(2048, quads, STEPS // 8, False),
    }


def measure(path: Path, a: argparse.Namespace) -> dict[str, Any]:
    from llamapy.runtime.context import Context
    from llamapy.runtime.model import Model

    data = np.ones(BYTES, np.uint8)
    rounds: dict[str, list[float]] = {}
    need = work(path)
    model = Model(path)
    with Context(model, n_ctx=a.p + a.n + 8, threads=a.t) as context:
        tokens = [int(t) for t in np.random.default_rng(0).integers(0, 256, a.p)]
        for repetition in range(a.r + 1):
            found = peaks(a.t, data)
            context.memory.clear()
            start = time.perf_counter()
            context.decode(tokens)
            middle = time.perf_counter()
            for token in tokens[: a.n]:
                context.decode([token])
            found["prefill"] = a.p / (middle - start)
            found["decode"] = a.n / (time.perf_counter() - middle)
            for name, value in found.items():
                if repetition:
                    rounds.setdefault(name, []).append(value)
    medians = {name: statistics.median(found) for name, found in rounds.items()}
    figures = {"macs": need.macs, "n_bytes": need.n_bytes, "prefill_macs": need.prefill}
    return {"model": path.name, **figures, **medians}


def show(row: dict[str, Any]) -> None:
    needed = row["prefill_macs"]
    most = 1 / sum(macs / row[name] for name, macs in needed.items())
    moved = row["decode"] * row["n_bytes"]
    need = f"{row['macs'] / 1e6:.0f} M products and {row['n_bytes'] / 1e6:.0f} MB a token"
    rates = ", ".join(f"{name} {row[name] / 1e9:.0f}" for name in UNITS) + " G products/s"
    print(f"{row['model']}: {need}")
    print(f"  machine  reads {row['read'] / 1e9:.1f} GB/s; {rates}")
    kinds = " and ".join(f"{macs / 1e6:.0f} M {name}" for name, macs in needed.items())
    share = f"{row['prefill'] / most:.0%} of the {most:.0f} t/s of {kinds} products at their peaks"
    print(f"  prefill  {row['prefill']:.1f} t/s: {share}")
    share = f"{moved / 1e9:.1f} GB/s, {moved / row['read']:.0%} of what can be read"
    print(f"  decode   {row['decode']:.1f} t/s: {share}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, help="default: SmolLM2 and Gemma 3 270M")
    parser.add_argument("-p", type=int, default=512, help="tokens of prefill")
    parser.add_argument("-n", type=int, default=32, help="tokens of decode")
    parser.add_argument("-t", type=int, default=2, help="threads")
    parser.add_argument("-r", type=int, default=5, help="rounds, after one to warm up")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    a = parser.parse_args()
    rows = [
        measure(path, a) for path in a.models or [fetch_models.smollm2(), fetch_models.gemma3()]
    ]
    for row in rows:
        show(row)
    if a.json:
        a.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
