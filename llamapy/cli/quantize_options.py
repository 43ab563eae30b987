"""The options of `llamapy quantize`; names are llama-quantize's where it has them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

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
TargetBpw = Annotated[
    float, Option(min=0.0, metavar="X", help="Least error at X bits per weight, instead of a TYPE.")
]
TargetSize = Annotated[
    str, Option(metavar="SIZE", help="Least error at this file size, such as 3.2GiB.")
]
