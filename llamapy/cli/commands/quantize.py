"""llamapy quantize: a model in fewer bits."""

from __future__ import annotations

from llamapy.cli import quantize_options as own
from llamapy.cli.options import Force, Json, Threads


def main(
    source: own.Input,
    rest: own.Rest = None,
    type: own.Type = "",
    imatrix: own.Imatrix = None,
    include_weights: own.Include = None,
    exclude_weights: own.Exclude = None,
    tensor_type: own.TensorType = None,
    tensor_type_file: own.TypeFile = None,
    output_tensor_type: own.Kind = "",
    token_embedding_type: own.Kind = "",
    pure: own.Pure = False,
    leave_output_tensor: own.Leave = False,
    allow_requantize: own.Requantize = False,
    keep_split: own.KeepSplit = False,
    prune_layers: own.Prune = "",
    override_kv: own.Override = None,
    recipe: own.RecipeFile = None,
    threads: Threads = 0,
    dry_run: own.DryRun = False,
    force: Force = False,
    no_fallback: own.NoFallback = False,
    allow_nonfinite: own.NonFinite = False,
    target_bpw: own.TargetBpw = 0.0,
    target_size: own.TargetSize = "",
    report: own.ReportFile = None,
    json: Json = False,
) -> None:
    """Write a model in fewer bits: every file type of llama-quantize, the same bytes."""
    from llamapy.cli import quantize_table
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
    default = ""
    if recipe:
        found = recipes.recipe(recipe, choices)
        choices, default = found.choices, found.file_type
    size = quantize_table.Size.of(target_bpw, target_size, type)
    target, wanted, counted = recipes.positionals(
        source,
        rest or [],
        type or size.base,
        keep_split,
        default=default,
        by_size=bool(size.base),
    )
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
    with quantize.prepare(source, wanted, options) as job:
        size.fit(job)
        if dry_run:
            quantize_table.show(job, [], as_json=json)
        else:
            quantize_table.carry_out(job, target, report, as_json=json)
