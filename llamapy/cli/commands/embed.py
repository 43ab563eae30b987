"""llamapy embed: texts as vectors."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from llamapy.cli import console, options
from llamapy.core.errors import UsageError


class Format(StrEnum):
    """How vectors are printed."""

    text = "text"
    json = "json"
    array = "array"
    npy = "npy"


Prompts = Annotated[
    list[str] | None, Option("-p", "--prompt", metavar="TEXT", help="A text (repeatable).")
]
Lines = Annotated[
    Path | None, Option("-f", "--file", metavar="FILE", help="Texts, one a line; - is stdin.")
]
Pooling = Annotated[
    str,
    Option("--pooling", metavar="WAY", help="none, mean, cls or last; else what the file says."),
]
Normalize = Annotated[
    int,
    Option("--normalize", "--embd-normalize", metavar="P", help="-1 not, 0 int16, 1, 2, p-norm."),
]
Out = Annotated[
    Format, Option("--output-format", "--embd-output-format", help="How vectors are printed.")
]


def main(
    model: options.ModelPath = None,
    hf_repo: options.HfRepo = "",
    prompt: Prompts = None,
    file: Lines = None,
    pooling: Pooling = "",
    normalize: Normalize = 2,
    output_format: Out = Format.text,
    output: options.Output = None,
    force: options.Force = False,
    threads: options.Threads = 0,
    json: options.Json = False,
) -> None:
    """Print a vector for each text."""
    if model is None and not hf_repo:
        raise UsageError("embed needs a model", hint="-m FILE.gguf")
    texts = [*(prompt or []), *(_lines(file) if file else [])]
    if not texts:
        raise UsageError("there is no text", hint="give -p TEXT or -f FILE")
    chosen = Format.json if json else output_format
    if (chosen is Format.npy) != (output is not None):
        raise UsageError("--output-format npy and -o FILE go together")
    from llamapy.runtime import sources
    from llamapy.runtime.model import Model
    from llamapy.tasks import embed

    found = sources.resolve(options.model_of(model, hf_repo))
    with console.progress("texts", len(texts)) as tick:
        vectors = embed.embed(
            Model(found),
            texts,
            pooling=pooling,
            normalize=normalize,
            threads=threads or None,
            on_done=tick,
        )
    if output is not None:
        _write(output, vectors, overwrite=force)
    elif chosen is Format.text:
        _print(vectors, whole=normalize == 0)
    else:
        rows = [row for vector in vectors for row in vector.reshape(-1, vector.shape[-1])]
        named = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(rows)]
        console.json(rows if chosen is Format.array else {"object": "list", "data": named})


def _lines(file: Path) -> list[str]:
    from llamapy.cli.texts import prompt_of

    raw = prompt_of(None, file, escapes=False) or b""
    return [line for line in raw.decode("utf-8", "replace").splitlines() if line]


def _print(vectors: list[Any], *, whole: bool) -> None:
    form = "{:6.0f}" if whole else "{:9.6f}"
    rows = [row for vector in vectors for row in vector.reshape(-1, vector.shape[-1])]
    for i, row in enumerate(rows):
        print(f"embedding {i}:", " ".join(form.format(x) for x in row.tolist()))


def _write(path: Path, vectors: list[Any], *, overwrite: bool) -> None:
    """All rows as one numpy file [n, n_embd]."""
    import io

    import numpy as np

    from llamapy.gguf.output import PendingFiles

    buffer = io.BytesIO()
    np.save(buffer, np.concatenate([v.reshape(-1, v.shape[-1]) for v in vectors]))
    data = buffer.getvalue()
    with PendingFiles([(path, len(data))], overwrite=overwrite) as pending, pending.open(0) as out:
        out.write(data)
