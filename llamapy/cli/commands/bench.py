"""llamapy bench: how fast models run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from llamapy.cli import options

Models = Annotated[
    list[Path] | None,
    Option("-m", "--model", metavar="FILE", help="GGUF model (repeatable); else SmolLM2."),
]
Prompts = Annotated[
    str, Option("-p", "--n-prompt", metavar="LIST", help="Prompt sizes, as 512,1024 or 64-512*2.")
]
Gens = Annotated[str, Option("-n", "--n-gen", metavar="LIST", help="Tokens to generate.")]
Pairs = Annotated[list[str] | None, Option("-pg", metavar="PP,TG", help="Both after another.")]
Depths = Annotated[str, Option("-d", "--n-depth", metavar="LIST", help="Positions before.")]
Batches = Annotated[str, Option("-b", "--batch-size", metavar="LIST", help="Submitted at once.")]
UBatches = Annotated[str, Option("-ub", "--ubatch-size", metavar="LIST", help="Computed at once.")]
TypesK = Annotated[str, Option("-ctk", "--cache-type-k", metavar="LIST", help="Types of K.")]
TypesV = Annotated[str, Option("-ctv", "--cache-type-v", metavar="LIST", help="Types of V.")]
Threads = Annotated[str, Option("-t", "--threads", metavar="LIST", help="Threads; 0 is all.")]
Flash = Annotated[str, Option("-fa", "--flash-attn", metavar="LIST", help="on, off, auto.")]
Repack = Annotated[str, Option("--repack", metavar="LIST", help="0, 1: layouts of its own.")]
Mmap = Annotated[bool, Option("--mmap/--no-mmap", help="Map the file, or read it.")]
Reps = Annotated[int, Option("-r", "--repetitions", min=1, metavar="N", help="Runs of each test.")]
Form = Annotated[str, Option("-o", "--output", metavar="FORM", help="md, json, jsonl, csv, sql.")]
Progress = Annotated[bool, Option("--progress", help="Say on stderr what is done.")]
NoWarmup = Annotated[bool, Option("--no-warmup", help="Do not run each test once before.")]
Profile = Annotated[bool, Option("--profile", help="A table of time by op and type.")]
TraceFile = Annotated[
    Path | None, Option("--trace", metavar="FILE.json", help="A trace for Chrome or Perfetto.")
]


def main(
    model: Models = None,
    hf_repo: options.HfRepo = "",
    n_prompt: Prompts = "512",
    n_gen: Gens = "128",
    pg: Pairs = None,
    n_depth: Depths = "0",
    batch_size: Batches = "2048",
    ubatch_size: UBatches = "512",
    ctk: TypesK = "f16",
    ctv: TypesV = "f16",
    threads: Threads = "0",
    flash_attn: Flash = "auto",
    repack: Repack = "1",
    mmap: Mmap = True,
    repetitions: Reps = 5,
    output: Form = "md",
    progress: Progress = False,
    no_warmup: NoWarmup = False,
    profile: Profile = False,
    trace: TraceFile = None,
) -> None:
    """Measure how fast models run: prefill and decode, as llama-bench."""
    from llamapy.cli import benching
    from llamapy.tasks import bench

    fetched = options.model_of(None, hf_repo)
    wanted = bench.cases(
        benching.models([*(model or []), *([fetched] if fetched else [])]),
        n_prompt=bench.numbers(n_prompt),
        n_gen=bench.numbers(n_gen),
        pairs=[bench.pair(text) for text in pg or ()],
        n_depth=bench.numbers(n_depth),
        mmap=mmap,
        repack=[bool(n) for n in bench.numbers(repack)],
        n_batch=bench.numbers(batch_size),
        n_ubatch=bench.numbers(ubatch_size),
        type_k=benching.cache_types(ctk),
        type_v=benching.cache_types(ctv),
        flash_attn=benching.flash(flash_attn),
        n_threads=bench.numbers(threads),
    )
    benching.show(
        wanted,
        output,
        reps=repetitions,
        warmup=not no_warmup,
        progress=progress,
        profile=profile,
        trace=trace,
    )
