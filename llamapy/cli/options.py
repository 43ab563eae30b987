"""Options that several commands share, as annotations; help texts and short names live only here.

A command writes `def main(model: ModelPath = None, threads: Threads = 0, json: Json = False)`.
Short names are llama.cpp's.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from llamapy.core.errors import UsageError


class OnOffAuto(StrEnum):
    """Something that is on, off, or as fits."""

    on = "on"
    off = "off"
    auto = "auto"


ModelPath = Annotated[
    Path | None,
    Option("-m", "--model", metavar="FILE", help="GGUF model; without it SmolLM2-135M-Instruct."),
]
HfRepo = Annotated[
    str, Option("-hf", "--hf-repo", metavar="USER/REPO[:TYPE]", help="Model from the hub, for -m.")
]
GgufFile = Annotated[Path, Argument(metavar="FILE", help="GGUF file (the first, if it is split).")]
Prompt = Annotated[str | None, Option("-p", "--prompt", metavar="TEXT", help="The prompt.")]
PromptFile = Annotated[
    Path | None,
    Option("-f", "--file", metavar="FILE", help="File that holds the text; - is stdin."),
]
Output = Annotated[Path | None, Option("-o", "--output", metavar="FILE", help="Where to write.")]
Force = Annotated[bool, Option("--force", help="Overwrite an existing output.")]
Json = Annotated[bool, Option("--json", help="Print JSON and nothing else to stdout.")]

Predict = Annotated[
    int, Option("-n", "--predict", metavar="N", help="Tokens to generate at most; -1 is no limit.")
]
CtxSize = Annotated[
    int, Option("-c", "--ctx-size", min=0, metavar="N", help="Context in tokens; 0 asks the model.")
]
Batch = Annotated[
    int, Option("-b", "--batch-size", min=1, metavar="N", help="Tokens submitted at once.")
]
UBatch = Annotated[
    int, Option("-ub", "--ubatch-size", min=1, metavar="N", help="Tokens computed at once.")
]
Threads = Annotated[
    int,
    Option(
        "-t", "--threads", min=0, metavar="N", help="Threads; 0 takes what this machine allows."
    ),
]
Seed = Annotated[
    int, Option("-s", "--seed", min=-1, metavar="N", help="Seed of sampling; -1 draws one.")
]
TypeK = Annotated[
    str, Option("--ctk", "-ctk", "--cache-type-k", metavar="TYPE", help="Type of the K cache.")
]
TypeV = Annotated[
    str, Option("--ctv", "-ctv", "--cache-type-v", metavar="TYPE", help="Type of the V cache.")
]
FlashAttention = Annotated[OnOffAuto, Option("-fa", "--flash-attn", help="Flash attention.")]
Activations = Annotated[
    str,
    Option(metavar="exact|q8", help="q8: rounded as llama.cpp's CPU kernels do, for its figures."),
]
GpuLayers = Annotated[
    int,
    Option("-ngl", "--gpu-layers", min=0, metavar="N", help="Last layers to run on the --device."),
]
Device = Annotated[
    str, Option("--device", metavar="NAME", help="Device of the layers that -ngl counts.")
]
NoMmap = Annotated[bool, Option("--no-mmap", help="Read the file instead of mapping it.")]
NoRepack = Annotated[bool, Option("--no-repack", help="Leave weights in the layout of the file.")]


def model_of(path: Path | None, hf_repo: str) -> Path | None:
    """The model of -m or -hf; None if neither is given. UsageError if both are."""
    if not hf_repo:
        return path
    if path is not None:
        raise UsageError("-m and -hf do not go together")
    from llamapy.tasks import hub

    return hub.file(hf_repo)
