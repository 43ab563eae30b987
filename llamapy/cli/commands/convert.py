"""llamapy convert: a Hugging Face folder as one GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from llamapy.cli import console
from llamapy.cli.options import Force, Json, Threads

if TYPE_CHECKING:
    from llamapy.tasks.convert import Job

Folder = Annotated[str, Argument(metavar="[DIR]", help="Folder with config.json and safetensors.")]
Repo = Annotated[
    str, Option("-hf", "--hf-repo", metavar="USER/REPO", help="Fetch it from the hub.")
]
OutFile = Annotated[
    str, Option("-o", "--outfile", "--output", metavar="FILE", help="File; {ftype} is the type.")
]
OutType = Annotated[
    str, Option("--outtype", metavar="TYPE", help="auto, f32, f16, bf16, q8_0 or any file type.")
]
VocabOnly = Annotated[bool, Option("--vocab-only", help="Only the vocabulary.")]
ModelName = Annotated[str | None, Option("--model-name", metavar="NAME", help="general.name.")]
MetadataFile = Annotated[
    Path | None, Option("--metadata", metavar="FILE", help="JSON with keys that override.")
]
Pre = Annotated[str | None, Option("--pre", metavar="NAME", help="Name of the pre-tokenizer.")]
MaxTensors = Annotated[int, Option("--split-max-tensors", min=0, metavar="N", help="A part.")]
MaxSize = Annotated[str, Option("--split-max-size", metavar="N(K|M|G)", help="Of a part.")]
NoFirst = Annotated[bool, Option("--no-tensor-first-split", help="First part without tensors.")]
SHOWN = 3  # tensors that are named because they do not fit the type
DryRun = Annotated[bool, Option("--dry-run", help="Only say what would be made.")]


def main(
    folder: Folder = "",
    hf_repo: Repo = "",
    outfile: OutFile = "",
    outtype: OutType = "auto",
    vocab_only: VocabOnly = False,
    model_name: ModelName = None,
    metadata: MetadataFile = None,
    pre: Pre = None,
    split_max_tensors: MaxTensors = 0,
    split_max_size: MaxSize = "",
    no_tensor_first_split: NoFirst = False,
    threads: Threads = 0,
    dry_run: DryRun = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Convert a Hugging Face model to GGUF, in any type."""
    from llamapy.gguf.split import parse_size
    from llamapy.tasks import convert, hub

    options = convert.Options(
        outtype=outtype,
        output=outfile,
        vocab_only=vocab_only,
        model_name=model_name,
        metadata=metadata,
        pre=pre,
        split_max_tensors=split_max_tensors,
        split_max_size=parse_size(split_max_size) if split_max_size not in ("", "0") else 0,
        no_tensor_first_split=no_tensor_first_split,
        threads=threads or _threads(),
        overwrite=force,
    )
    job = convert.prepare(hub.folder(folder, hf_repo), options)
    paths: list[str] = []
    if not dry_run:
        with console.progress("converting", job.n_bytes, unit="B") as tick:
            paths = convert.run(
                job,
                on_done=lambda done: tick(done, description="converting"),
                on_compile=lambda: tick(0, description="compiling kernels"),
            )
    _report(job, paths or convert.files(job), paths, as_json=json)


def _threads() -> int:
    from llamapy.backend.cpu import threads

    return threads.choose(0)


def _report(job: Job, planned: list[str], paths: list[str], *, as_json: bool) -> None:
    fallbacks = job.chosen.fallbacks
    for text in fallbacks[:SHOWN]:
        console.warn(text)
    if len(fallbacks) > SHOWN:
        console.warn(f"{len(fallbacks) - SHOWN} more tensors have a wider type; --dry-run lists it")
    rows = [(t.name, list(t.ne), job.chosen.kinds[t.name], job.bytes_of(t)) for t in job.tensors]
    if as_json:
        console.json(
            {
                "architecture": job.params.arch,
                "type": job.chosen.name,
                "output": str(job.path),
                "files": planned,
                "written": paths,
                "tensor_bytes": job.n_bytes,
                "tensors": [dict(zip(("name", "ne", "type", "bytes"), row)) for row in rows],
            }
        )
    elif paths:
        n_bytes = sum(Path(path).stat().st_size for path in paths)
        for path in paths:
            print(path)
        console.note(f"{len(rows)} tensors, {n_bytes / 1e6:,.1f} MB as {job.chosen.name}")
    else:
        table = [(*about, f"{n_bytes:,}") for *about, n_bytes in rows]
        console.table(planned[0], ("tensor", "shape", "type", "bytes"), table, numbers=("bytes",))
        size = f"{job.n_bytes / 1e6:,.1f} MB of tensors as {job.chosen.name}"
        many = f" in {len(planned)} files" if len(planned) > 1 else ""
        console.note(f"{len(rows)} tensors, {size}{many}; nothing was written")
