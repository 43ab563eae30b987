"""llamapy perplexity: how surprised a model is by a text, and by how much quants differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from llamapy.cli import options

Texts = Annotated[list[Path] | None, Argument(metavar="[TEXT]...", help="Text files.")]
Files = Annotated[
    list[Path] | None, Option("-f", "--file", metavar="FILE", help="Text file (repeatable).")
]
Ctx = Annotated[int, Option("-c", "--ctx-size", min=4, metavar="N", help="Tokens a chunk.")]
NBatch = Annotated[
    int,
    Option("-b", "--batch-size", min=0, metavar="N", help="Tokens side by side; 0 is as -ub."),
]
Chunks = Annotated[int, Option(min=-1, metavar="N", help="Chunks at most; -1 is all.")]
Stride = Annotated[
    int, Option("--stride", "--ppl-stride", min=0, metavar="N", help="Windows that move by N.")
]
PerByte = Annotated[bool, Option("--per-byte", help="Figures by byte, too.")]


def main(
    texts: Texts = None,
    model: options.ModelPath = None,
    file: Files = None,
    ctx_size: Ctx = 512,
    batch: NBatch = 0,
    ubatch: options.UBatch = 512,
    chunks: Chunks = -1,
    stride: Stride = 0,
    per_byte: PerByte = False,
    threads: options.Threads = 0,
    ctk: options.TypeK = "f16",
    ctv: options.TypeV = "f16",
    flash_attn: options.FlashAttention = options.OnOffAuto.auto,
    json: options.Json = False,
) -> None:
    """Measure how surprised a model is by a text: perplexity."""
    from llamapy.cli import measuring
    from llamapy.cli.kernels import compiling
    from llamapy.cli.running import open_model

    files = measuring.texts(texts, file)
    with compiling() as hook:
        context = {
            "n_batch": batch,
            "n_ubatch": ubatch,
            "type_k": ctk,
            "type_v": ctv,
            "flash_attn": flash_attn.value,
            "threads": threads,
            "on_compile": hook,
        }
        measuring.perplexity(
            open_model(model),
            files,
            as_json=json,
            per_byte=per_byte,
            n_ctx=ctx_size,
            chunks=chunks,
            stride=stride,
            **context,
        )
