"""llamapy imatrix: which columns of a model's weights matter, for quantization."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from llamapy.cli import options

Words = Annotated[
    list[str] | None,
    Argument(metavar="[show|convert|merge|diff FILE...]", help="What to do without a model."),
]
Texts = Annotated[
    list[Path] | None, Option("-f", "--file", metavar="FILE", help="Text file (repeatable).")
]
Out = Annotated[Path | None, Option("-o", "--output", metavar="FILE", help="Where to write.")]
Format = Annotated[
    str, Option("--output-format", metavar="gguf|dat", help="Format; else by the output's suffix.")
]
Ctx = Annotated[int, Option("-c", "--ctx-size", min=4, metavar="N", help="Tokens a chunk.")]
Chunks = Annotated[int, Option(min=-1, metavar="N", help="Chunks at most; -1 is all.")]
From = Annotated[int, Option("--chunk", "--from-chunk", min=0, metavar="N", help="Skip N chunks.")]
ProcessOutput = Annotated[bool, Option("--process-output", help="The output's weights, too.")]
ParseSpecial = Annotated[bool, Option("--parse-special", help="Read special tokens in the text.")]
InFiles = Annotated[
    list[Path] | None, Option("--in-file", metavar="FILE", help="Add to these (repeatable).")
]
SaveEvery = Annotated[
    int, Option("--save-frequency", min=0, metavar="N", help="Keep a copy every N chunks.")
]
NoPpl = Annotated[bool, Option("--no-ppl", help="Do not measure perplexity, too.")]


def main(
    words: Words = None,
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    file: Texts = None,
    output: Out = None,
    output_format: Format = "",
    ctx_size: Ctx = 512,
    ubatch: options.UBatch = 512,
    chunks: Chunks = -1,
    chunk: From = 0,
    process_output: ProcessOutput = False,
    parse_special: ParseSpecial = False,
    in_file: InFiles = None,
    save_frequency: SaveEvery = 0,
    no_ppl: NoPpl = False,
    threads: options.Threads = 0,
    activations: options.Activations = "exact",
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Collect an importance matrix from a text, or show, convert, merge, diff some."""
    from llamapy.cli import importances

    target = importances.Target(output, output_format, force)
    if words or (in_file and not file):
        importances.tool(words or ["merge"], in_file or [], target, as_json=json)
        return
    importances.collect(
        options.model_of(model, hf_repo),
        file or [],
        target,
        before=in_file or [],
        as_json=json,
        n_ctx=ctx_size,
        n_ubatch=ubatch,
        chunks=chunks,
        skip=chunk,
        process_output=process_output,
        parse_special=parse_special,
        save_every=save_frequency,
        with_ppl=not no_ppl,
        threads=threads,
        activations=activations,
    )
