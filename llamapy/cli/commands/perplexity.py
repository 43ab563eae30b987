"""llamapy perplexity: how surprised a model is by a text, and by how much quants differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
SaveLogits = Annotated[
    Path | None,
    Option("--save-logits", "--save-all-logits", metavar="FILE", help="Keep log-probabilities."),
]
KlBase = Annotated[
    Path | None,
    Option("--kl-base", "--kl-divergence-base", metavar="FILE", help="Compare with such a file."),
]
LogitsFormat = Annotated[str, Option(metavar="u16|f32", help="llama.cpp's form, or exact.")]
Compare = Annotated[bool, Option("--compare", help="TEXTs are models; the first is the base.")]
Plot = Annotated[Path | None, Option(metavar="FILE", help="Quality by size (png, svg, html).")]
Hellaswag = Annotated[Path | None, Option(metavar="FILE", help="Score HellaSwag tasks.")]
Winogrande = Annotated[Path | None, Option(metavar="FILE", help="Score Winogrande tasks.")]
Choice = Annotated[
    Path | None, Option("--multiple-choice", metavar="FILE", help="Score multiple choice tasks.")
]
TASKS = ("--tasks", "--hellaswag-tasks", "--winogrande-tasks", "--multiple-choice-tasks")
Tasks = Annotated[int, Option(*TASKS, min=0, metavar="N", help="Tasks at most; 0 is as llama.cpp.")]
PerByte = Annotated[bool, Option("--per-byte", help="Figures by byte, too.")]


def main(
    texts: Texts = None,
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    file: Files = None,
    ctx_size: Ctx = 512,
    batch: NBatch = 0,
    ubatch: options.UBatch = 512,
    chunks: Chunks = -1,
    stride: Stride = 0,
    per_byte: PerByte = False,
    save_logits: SaveLogits = None,
    kl_base: KlBase = None,
    logits_format: LogitsFormat = "u16",
    compare: Compare = False,
    plot: Plot = None,
    hellaswag: Hellaswag = None,
    winogrande: Winogrande = None,
    multiple_choice: Choice = None,
    tasks: Tasks = 0,
    threads: options.Threads = 0,
    ctk: options.TypeK = "f16",
    ctv: options.TypeV = "f16",
    flash_attn: options.FlashAttention = options.OnOffAuto.auto,
    activations: options.Activations = "exact",
    json: options.Json = False,
) -> None:
    """Measure how surprised a model is by a text: perplexity."""
    from llamapy.cli import measuring
    from llamapy.cli.kernels import compiling
    from llamapy.cli.running import open_model
    from llamapy.core.errors import UsageError

    model = options.model_of(model, hf_repo)
    with compiling() as hook:
        context: dict[str, Any] = {
            "n_batch": batch,
            "n_ubatch": ubatch,
            "type_k": ctk,
            "type_v": ctv,
            "flash_attn": flash_attn.value,
            "threads": threads,
            "activations": activations,
            "on_compile": hook,
        }
        tests = {"hellaswag": hellaswag, "winogrande": winogrande}
        tests |= {"multiple_choice": multiple_choice}
        if given := {name: path for name, path in tests.items() if path}:
            del context["n_batch"]
            measuring.choose(
                open_model(model), given, tasks, as_json=json, n_ctx=ctx_size, **context
            )
            return
        common = {"as_json": json, "chunks": chunks} | context
        if kl_base is not None:
            if file or texts or save_logits:
                raise UsageError("--kl-base takes the text of its file, and writes nothing")
            measuring.diverge(open_model(model), kl_base, **common)
            return
        common |= {"n_ctx": ctx_size}
        if compare:
            models = [open_model(path) for path in [*([model] if model else []), *(texts or [])]]
            measuring.compare(models, measuring.texts(None, file), plot, **common)
            return
        files = measuring.texts(texts, file)
        if save_logits is not None:
            measuring.save_logits(
                open_model(model), files, save_logits, form=logits_format, **common
            )
            return
        common |= {"per_byte": per_byte, "stride": stride}
        measuring.perplexity(open_model(model), files, **common)
