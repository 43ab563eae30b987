"""What prefill's inner loops cost on processors that this machine is not: `inner_loops.py [TYPE]`.

For each type of weights the innermost loop of our panels, compiled for a SIMD level, and the
fastest innermost loop of llama.cpp's kernel in its library for a processor of that level: LLVM's
model of that processor (llvm-mca, of Debian's `llvm`) tells the cycles, the instructions tell the
products. Both read first-level cache and meet no neighbour, so only their ratio means anything;
what stands around the loops is left out, and so are types whose products llama.cpp makes in
functions without a name (Q5_0, Q8_0, IQ4_NL). Needs objdump, nm, and npm for llama.cpp's side.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peer_fetch

FEATURES = {
    "avx2": "avx avx2 fma f16c bmi2 ssse3 sse4.2",
    "avx512": "avx avx2 fma f16c bmi2 ssse3 sse4.2 "
    "avx512f avx512bw avx512cd avx512dq avx512vl avx512vnni",
}
# Level: LLVM's processor, llama.cpp's library.
CPUS = {"avx2": ("znver3", "haswell"), "avx512": ("icelake-server", "icelake")}
# What llama.cpp multiplies many columns with: a repacked product where it has one for the type.
PEER = {
    "q4_0": "ggml_gemm_q4_0_8x8_q8_0",
    "q4_1": "ggml_vec_dot_q4_1_q8_1",
    "q4_K": "ggml_gemm_q4_K_8x8_q8_K",
    "q5_K": "ggml_vec_dot_q5_K_q8_K",
    "q6_K": "ggml_vec_dot_q6_K_q8_K",
}
PRODUCTS = ("vpdpbusd", "vpmaddubsw")  # one for each byte of an operand
WIDTHS = {"zmm": 64, "ymm": 32, "xmm": 16}
ROUNDS = 200


@dataclass(frozen=True)
class Loop:
    """Instructions, products and modelled cycles of one turn."""

    instructions: int
    products: int
    cycles: float

    @property
    def rate(self) -> float:
        """Products a cycle."""
        return self.products / self.cycles


def innermost(lines: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Bodies of loops without loops in them, from (label or address, instruction) in order."""
    place = {label: i for i, (label, _) in enumerate(lines) if label}
    back = []
    for i, (_, text) in enumerate(lines):
        jump = re.match(r"j\w+\s+(\S+)", text)
        start = place.get(jump[1]) if jump else None
        if start is not None and start <= i:
            back.append((start, i))
    for start, end in back:
        if any((s, e) != (start, end) and start <= s and e <= end for s, e in back):
            continue
        yield [text for _, text in lines[start : end + 1]]


def n_products(body: Sequence[str]) -> int:
    """Products of bytes that one turn makes."""
    found = 0
    for text in body:
        if text.split()[0] in PRODUCTS:
            found += next(size for name, size in WIDTHS.items() if f"%{name}" in text)
    return found


def model(body: Sequence[str], cpu: str) -> Loop | None:
    """A loop in LLVM's model of a processor; None if it makes no products of bytes."""
    products = n_products([text for text in body if text])
    if not products:
        return None
    straight = [text for text in body if not re.match(r"(j\w+|nop\w*|data16|cs|\.)", text)]
    with tempfile.NamedTemporaryFile("w", suffix=".s") as file:
        file.write("".join(f"\t{text}\n" for text in straight))
        file.flush()
        command = ["llvm-mca", f"-mcpu={cpu}", f"-iterations={ROUNDS}", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cycles = re.search(r"Total Cycles:\s+(\d+)", said)
    assert cycles is not None, said
    return Loop(len(body), products, int(cycles[1]) / ROUNDS)


def best(lines: Sequence[tuple[str, str]], cpu: str) -> Loop | None:
    """The loop with the most products a cycle."""
    loops = [loop for body in innermost(lines) if (loop := model(body, cpu)) is not None]
    return max(loops, key=lambda loop: loop.rate, default=None)


def ours(kind: str, level: str) -> Loop | None:
    """The loop of our panels, compiled in another process as if for that level."""
    cpu = CPUS[level][0]
    features = ",".join(f"+{name}" for name in FEATURES[level].split())
    settings = {"NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "LLAMAPY_ISA": level}
    command = [sys.executable, __file__, "--assembly", kind, "--level", level]
    done = subprocess.run(
        command, env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    lines, label = [], ""
    for line in done.stdout.splitlines():
        found = re.match(r"(\.?L?\w+):", line)
        if found:
            label = found[1]
        elif line.startswith("\t") and not line.startswith("\t."):
            lines.append((label, re.sub(r"\s*#.*", "", line.strip())))
            label = ""
    return best(lines, cpu)


def assembly(kind: str, level: str) -> str:
    """Machine code of the panels' kernel as text. Run in a process of its own."""
    from llamapy.native import levels

    features = frozenset(FEATURES[level].split())
    levels.available = lambda: (level, "generic")  # type: ignore[assignment]
    levels.features = lambda: features  # type: ignore[assignment]
    import numba
    from llvmlite import binding
    from numba import types

    from llamapy.backend.cpu.kernels.mul_mat_panel import mul_mat_panel
    from llamapy.native import jit, phantom

    binding.initialize_native_asmparser()  # for instructions that we write out
    make: Any = phantom.Phantom
    signature = types.void(*[types.int64] * 4, make(kind), make("x8"))
    compiled: Any = numba.cfunc(signature, error_model="numpy")(jit.link(mul_mat_panel.function))
    return str(compiled._library.get_asm_str())


def theirs(kind: str, level: str) -> Loop | None:
    """The loop of llama.cpp's kernel, from its library."""
    cpu, name = CPUS[level]
    library = peer_fetch.fetch() / f"libggml-cpu-{name}.so"
    lines = disassembled(library, PEER[kind])
    return best(lines, cpu)


def disassembled(library: Path, symbol: str) -> list[tuple[str, str]]:
    """(address, instruction) of a function up to the next that has a name; a function that only
    jumps to another stands for that one."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout
    known = {row[2]: int(row[0], 16) for row in map(str.split, listed.splitlines()) if row[2:]}
    lines = _between(library, known[symbol], known.values())
    jump = re.match(r"jmp\s+([0-9a-f]+)$", lines[-1][1]) if len(lines) < 20 else None
    if jump is not None and int(jump[1], 16) not in {int(at, 16) for at, _ in lines}:
        lines = _between(library, int(jump[1], 16), known.values())
    return lines


def _between(library: Path, start: int, known: Iterable[int]) -> list[tuple[str, str]]:
    end = min((at for at in known if at > start), default=start + 30000)
    command = ["objdump", "-d", "--no-show-raw-insn", f"--start-address={start}"]
    text = subprocess.run(
        [*command, f"--stop-address={end}", library], capture_output=True, text=True, check=True
    ).stdout
    lines = []
    for line in text.splitlines():
        found = re.match(r"\s*([0-9a-f]+):\s+(\S.*)", line)
        if found:
            lines.append((found[1], re.sub(r"\s*(<.*>|#.*)", "", found[2]).strip()))
    while lines and lines[-1][1].split()[0] in ("nop", "nopw", "nopl", "data16", "cs", "xchg"):
        lines.pop()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "types", nargs="*", type=_type, metavar="TYPE", help=f"of {', '.join(PEER)}"
    )
    parser.add_argument("--level", choices=sorted(CPUS), default="avx512")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--assembly", type=_type, metavar="TYPE", help="print our machine code for a type"
    )
    a = parser.parse_args()
    if a.assembly:
        print(assembly(a.assembly, a.level))
        return
    rows = []
    for kind in a.types or PEER:
        mine, other = ours(kind, a.level), theirs(kind, a.level)
        rows.append({"type": kind, "ours": mine and vars(mine), "peer": other and vars(other)})
        if not a.json:
            both = [f"{n} {_said(loop)}" for n, loop in (("ours", mine), ("llama.cpp", other))]
            print(f"{kind:5} {'; '.join(both)}", flush=True)
    if a.json:
        print(json.dumps({"level": a.level, "loops": rows}))


def _type(name: str) -> str:
    """The type that a person calls `name`, in any case."""
    for kind in PEER:
        if kind.lower() == name.lower():
            return kind
    raise argparse.ArgumentTypeError(f"no type {name!r} here: there are {', '.join(PEER)}")


def _said(loop: Loop | None) -> str:
    if loop is None:
        return "-"
    return (
        f"{loop.products} products in {loop.instructions} instructions, {loop.cycles:.1f} cycles: "
        f"{loop.rate:.1f} a cycle"
    )


if __name__ == "__main__":
    main()
