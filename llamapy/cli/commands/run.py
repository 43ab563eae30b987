"""llamapy run: let a model answer a prompt, or talk with it."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from llamapy.cli import options, texts
from llamapy.core.errors import UsageError

Temp = Annotated[float | None, Option("--temp", metavar="T", help="Temperature; 0 is greedy.")]
TopK = Annotated[int | None, Option("--top-k", metavar="N", help="Only the N best; 0 is off.")]
TopP = Annotated[float | None, Option("--top-p", metavar="P", help="Nucleus; 1 is off.")]
MinP = Annotated[float | None, Option("--min-p", metavar="P", help="At least P of the best.")]
Penalty = Annotated[
    float | None, Option("--repeat-penalty", metavar="X", help="Against repetition; 1 is off.")
]
LastN = Annotated[
    int | None, Option("--repeat-last-n", metavar="N", help="Tokens it looks at; -1 is all.")
]
Stop = Annotated[list[str] | None, Option("--stop", metavar="TEXT", help="End there (repeatable).")]
System = Annotated[str, Option("--system", metavar="TEXT", help="The system message.")]
Raw = Annotated[bool, Option("--raw", help="No chat template: the text is the whole prompt.")]
Shift = Annotated[
    bool, Option("--context-shift", help="When the context is full, forget a part and go on.")
]
Keep = Annotated[int, Option("--keep", min=0, metavar="N", help="Positions never forgotten.")]
IgnoreEos = Annotated[bool, Option("--ignore-eos", help="Go on past the end of an answer.")]
Escape = Annotated[bool, Option("--escape/--no-escape", help="\\n and the like in -p count.")]
Bos = Annotated[bool, Option("--bos/--no-bos", help="With --raw: begin as the model wants.")]


def main(
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    prompt: options.Prompt = None,
    file: options.PromptFile = None,
    predict: options.Predict = -1,
    ctx_size: options.CtxSize = 0,
    batch: options.Batch = 2048,
    ubatch: options.UBatch = 512,
    threads: options.Threads = 0,
    seed: options.Seed = -1,
    temp: Temp = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_p: MinP = None,
    repeat_penalty: Penalty = None,
    repeat_last_n: LastN = None,
    stop: Stop = None,
    system: System = "",
    raw: Raw = False,
    ctk: options.TypeK = "f16",
    ctv: options.TypeV = "f16",
    flash_attn: options.FlashAttention = options.OnOffAuto.auto,
    no_mmap: options.NoMmap = False,
    no_repack: options.NoRepack = False,
    ngl: options.GpuLayers = 0,
    device: options.Device = "",
    json: options.Json = False,
    context_shift: Shift = False,
    keep: Keep = 0,
    ignore_eos: IgnoreEos = False,
    escape: Escape = True,
    bos: Bos = True,
) -> None:
    """Answer a prompt (-p, -f or piped in), or without one talk at the terminal."""
    text = texts.prompt_of(prompt, file, escapes=escape)
    if text is None and (raw or json):
        raise UsageError("--raw and --json need a prompt: -p, -f or piped in")
    from llamapy.cli import running

    opened = running.open_model(
        options.model_of(model, hf_repo),
        mmap=not no_mmap,
        repack=not no_repack,
        n_gpu_layers=ngl,
        device=device or None,
    )
    run = running.Run(
        opened,
        context={
            "n_ctx": ctx_size,
            "n_batch": batch,
            "n_ubatch": ubatch,
            "type_k": ctk,
            "type_v": ctv,
            "flash_attn": flash_attn.value,
            "threads": threads,
        },
        sampling={
            "seed": seed,
            "temp": temp,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "penalty_repeat": repeat_penalty,
            "penalty_last_n": repeat_last_n,
            "ignore_eos": ignore_eos,
        },
        generation={
            "n_predict": predict,
            "stop": [texts.argument(t, escapes=escape) for t in stop or ()],
            "context_shift": context_shift,
            "n_keep": keep,
        },
        system=texts.argument(system, escapes=escape),
    )
    if text is None:
        run.talk()
    else:
        run.answer(text, raw=raw, bos=bos, as_json=json)
