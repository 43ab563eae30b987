"""llamapy quantize: a model in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from llamapy.cli.options import Force, Json, Threads

Input = Annotated[Path, Argument(metavar="IN", help="GGUF file (the first, if it is split).")]
Rest = Annotated[
    list[str] | None,
    Argument(metavar="[OUT] [TYPE] [THREADS]", help="Output (ggml-model-TYPE.gguf beside IN)."),
]
Type = Annotated[str, Option("--type", metavar="TYPE", help="File type, such as q4_k_m or COPY.")]
Imatrix = Annotated[Path | None, Option(metavar="FILE", help="Importance matrix (GGUF or .dat).")]
Include = Annotated[list[str] | None, Option(metavar="PART", help="Only these importances.")]
Exclude = Annotated[list[str] | None, Option(metavar="PART", help="Not these importances.")]
TensorType = Annotated[list[str] | None, Option(metavar="REGEX=TYPE", help="Type of tensors.")]
TypeFile = Annotated[Path | None, Option(metavar="FILE", help="Such entries, in a file.")]
Kind = Annotated[str, Option(metavar="TYPE", help="Type of this tensor.")]
Pure = Annotated[bool, Option("--pure", help="The base type for all tensors.")]
Leave = Annotated[bool, Option("--leave-output-tensor", help="Leave output.weight as it is.")]
Requantize = Annotated[bool, Option("--allow-requantize", help="Take quantized tensors, too.")]
KeepSplit = Annotated[bool, Option("--keep-split", help="As many parts as the input has.")]
Prune = Annotated[str, Option(metavar="L,L", help="Layers to leave out.")]
Override = Annotated[list[str] | None, Option(metavar="KEY=TYPE:VALUE", help="Change metadata.")]
DryRun = Annotated[bool, Option("--dry-run", help="Only say what would be made.")]
NoFallback = Annotated[bool, Option("--no-fallback", help="Fail where rows do not divide.")]
NonFinite = Annotated[bool, Option("--allow-nonfinite", help="Go on with NaN and infinities.")]
RecipeFile = Annotated[Path | None, Option(metavar="FILE", help="Types of tensors, in TOML.")]
ReportFile = Annotated[Path | None, Option(metavar="FILE", help="Errors, as .html or .json.")]


def main(
    source: Input,
    rest: Rest = None,
    type: Type = "",
    imatrix: Imatrix = None,
    include_weights: Include = None,
    exclude_weights: Exclude = None,
    tensor_type: TensorType = None,
    tensor_type_file: TypeFile = None,
    output_tensor_type: Kind = "",
    token_embedding_type: Kind = "",
    pure: Pure = False,
    leave_output_tensor: Leave = False,
    allow_requantize: Requantize = False,
    keep_split: KeepSplit = False,
    prune_layers: Prune = "",
    override_kv: Override = None,
    recipe: RecipeFile = None,
    threads: Threads = 0,
    dry_run: DryRun = False,
    force: Force = False,
    no_fallback: NoFallback = False,
    allow_nonfinite: NonFinite = False,
    report: ReportFile = None,
    json: Json = False,
) -> None:
    """Write a model in fewer bits: every file type of llama-quantize, the same bytes."""
    from llamapy.tasks import quantize, recipes
    from llamapy.tasks.quantize_plan import Choices

    choices = Choices(
        tensor_types=recipes.tensor_types(
            tensor_type or [], [tensor_type_file] if tensor_type_file else []
        ),
        output=output_tensor_type,
        token_embedding=token_embedding_type,
        pure=pure,
        leave_output=leave_output_tensor,
        no_fallback=no_fallback,
        allow_requantize=allow_requantize,
    )
    if recipe:
        found = recipes.recipe(recipe, choices)
        choices, type = found.choices, type or found.file_type
    target, wanted, counted = recipes.positionals(source, rest or [], type, keep_split)
    options = quantize.Options(
        choices=choices,
        imatrix=imatrix,
        include_weights=include_weights or [],
        exclude_weights=exclude_weights or [],
        keep_split=keep_split,
        prune_layers=recipes.layers(prune_layers),
        overrides=dict(recipes.override(text) for text in override_kv or []),
        threads=threads or counted,
        allow_nonfinite=allow_nonfinite,
        overwrite=force,
    )
    from llamapy.cli import quantize_table

    with quantize.prepare(source, wanted, options) as job:
        if dry_run:
            quantize_table.show(job, [], as_json=json)
        else:
            quantize_table.carry_out(job, target, report, as_json=json)
