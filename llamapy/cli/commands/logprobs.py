"""llamapy logprobs: how likely a model finds each token of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from llamapy.cli import options

TopK = Annotated[int, Option("--top-k", "-k", min=0, metavar="N", help="The N likeliest, too.")]
ParseSpecial = Annotated[bool, Option("--parse-special", help="Read special tokens in the text.")]
File = Annotated[
    Path | None,
    Option("-f", "--file", metavar="FILE", help="File of the text; - is stdin."),
]


def main(
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    prompt: options.Prompt = None,
    file: File = None,
    top_k: TopK = 0,
    parse_special: ParseSpecial = False,
    ctx_size: options.CtxSize = 0,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """Print the log-probability of each token of a text; --json: a line each."""
    from llamapy.cli import console, texts
    from llamapy.cli.kernels import compiling
    from llamapy.cli.running import open_model
    from llamapy.core.errors import UsageError
    from llamapy.runtime.logprobs import logprobs

    opened = open_model(options.model_of(model, hf_repo))
    text = texts.prompt_of(prompt, file, escapes=True)
    if text is None:
        raise UsageError("a text is missing", hint="-p TEXT, -f FILE or piped in")
    with compiling() as hook:
        found = logprobs(
            opened,
            text,
            top_k=top_k,
            parse_special=parse_special,
            n_ctx=ctx_size,
            threads=threads,
            on_compile=hook,
        )
    if json:
        for one in found:
            console.json(one)
        return
    rows = []
    for one in found:
        best = "  ".join(f"{a.text!r} {a.logprob:.3f}" for a in one.top)
        known = one.logprob is not None
        figures = [f"{one.logprob:.4f}", one.rank] if known else ["", ""]
        rows.append([one.token, repr(one.text), *figures, *([best] if top_k else [])])
    columns = ["id", "token", "log p", "rank", *(["likeliest"] if top_k else [])]
    console.table("", columns, rows, numbers=["id", "log p", "rank"])
    total = sum(one.logprob for one in found if one.logprob is not None)
    console.out().print(f"sum of log p: {total:.4f} over {len(found) - 1} tokens")
