"""Convert a Hugging Face folder to GGUF: what `llamapy convert` does, for programs. Prints nothing.

The file is that of convert_hf_to_gguf.py, byte for byte; docs/convert.md says where it is not.
Memory is a few times the largest tensor, whatever the model's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from llamapy.convert import architectures, dequant, metadata, names, vocab
from llamapy.convert.checkpoint import Checkpoint, open_folder
from llamapy.convert.metadata import About
from llamapy.convert.plan import Stored, Tensor, embedding_rows, plan
from llamapy.core.errors import ModelError, UsageError
from llamapy.gguf import keys, split
from llamapy.gguf.writer import GGUFWriter
from llamapy.nn import hf
from llamapy.nn.params import Params
from llamapy.quants import codec
from llamapy.tasks import convert_types
from llamapy.tasks.convert_data import Data
from llamapy.tasks.convert_types import Chosen

StrPath = str | os.PathLike[str]

QUANTIZATION_VERSION = 2  # GGML_QUANT_VERSION


@dataclass(frozen=True)
class Options:
    """outtype   "auto" or the name of a file type
    output    file, pattern with {ftype} or {FTYPE}, or folder; "" is the model's folder
    vocab_only  only the vocabulary and the model's numbers
    model_name, metadata  general.name; a JSON file of other keys
    pre       the name of the pre-tokenizer, if it is not to be found out
    split_max_tensors, split_max_size  parts of at most so many tensors or bytes; 0 is no limit
    no_tensor_first_split  a first part without tensors
    threads   for quantized types
    """

    outtype: str = "auto"
    output: StrPath = ""
    vocab_only: bool = False
    model_name: str | None = None
    metadata: Path | None = None
    pre: str | None = None
    split_max_tensors: int = 0
    split_max_size: int = 0
    no_tensor_first_split: bool = False
    threads: int = 1
    overwrite: bool = False

    @property
    def in_parts(self) -> bool:
        """Whether several files are to be made, if there is enough for several."""
        return bool(self.split_max_tensors or self.split_max_size)


@dataclass
class Job:
    """A conversion that is decided but not done."""

    checkpoint: Checkpoint
    options: Options
    params: Params
    path: Path
    values: dict[str, Any]
    tensors: list[Tensor] = field(default_factory=list)
    chosen: Chosen = field(default_factory=lambda: Chosen("F16", {}))

    @property
    def n_bytes(self) -> int:
        """Bytes of tensor data."""
        return sum(self.bytes_of(one) for one in self.tensors)

    def bytes_of(self, tensor: Tensor) -> int:
        kind = codec.get(self.chosen.kinds[tensor.name])
        return kind.row_bytes(tensor.ne[0]) * (tensor.n_elements // max(1, tensor.ne[0]))


def prepare(folder: StrPath, options: Options | None = None) -> Job:
    """Read everything but tensor data, and decide. Whatever can be refused is refused here."""
    options = options or Options()
    _check(options)
    checkpoint = open_folder(folder, with_tensors=not options.vocab_only)
    arch, name = architectures.find(checkpoint.architecture, str(checkpoint.folder))
    checkpoint = replace(checkpoint, config=_config(arch, checkpoint))
    where = str(checkpoint.folder)
    sources = dequant.sources(checkpoint.tensors, checkpoint.config, where)
    n_vocab = _n_vocab(arch, sources, checkpoint)
    params: Params = arch.Params.from_config(
        checkpoint.config, arch=name, n_vocab=n_vocab, where=where
    )
    tensors = [] if options.vocab_only else plan(checkpoint, arch, params, sources)
    chosen = convert_types.choose(options.outtype, tensors, sources, params, where)
    about = metadata.about(
        checkpoint,
        {one.name: one.ne for one in tensors},
        override=options.metadata,
        name=options.model_name,
    )
    policy: hf.Vocabulary = getattr(arch, "VOCAB", hf.Vocabulary())
    values: dict[str, Any] = {keys.ARCHITECTURE: name, keys.TYPE: "model"}
    early, numbers = metadata.of_architecture(
        arch, params, checkpoint.config, chosen.file_type, where
    )
    values = {keys.ARCHITECTURE: name} | early | values | about.values()
    values |= numbers
    values[keys.QUANTIZATION_VERSION] = QUANTIZATION_VERSION
    values |= vocab.read(checkpoint, policy, n_vocab, options.pre)
    path = _path(checkpoint, options, about, chosen.name)
    order = {tensor: i for i, tensor in enumerate(chosen.kinds)}
    tensors.sort(key=lambda one: order[one.name])
    return Job(checkpoint, options, params, path, values, tensors, chosen)


def _check(options: Options) -> None:
    if options.split_max_tensors and options.split_max_size:
        raise UsageError("--split-max-tensors and --split-max-size do not go together")
    if options.no_tensor_first_split and not options.in_parts:
        raise UsageError("--no-tensor-first-split needs --split-max-tensors or --split-max-size")


def _config(arch: ModuleType, checkpoint: Checkpoint) -> dict[str, Any]:
    """The configuration as the architecture wants it."""
    config = hf.with_rope(checkpoint.config)
    pooling = metadata.pooling(checkpoint)
    if pooling is not None:
        config["pooling_type"] = pooling
    adjust: Callable[..., dict[str, Any]] | None = getattr(arch, "adjust", None)
    return adjust(config) if adjust else config


def _n_vocab(arch: ModuleType, sources: Mapping[str, Stored], checkpoint: Checkpoint) -> int:
    """Rows of the embeddings; without tensors what the configuration says."""
    rows = embedding_rows(arch, sources)
    if rows is not None:
        return rows
    size = checkpoint.config.get("vocab_size")
    if not isinstance(size, int):
        raise ModelError(f"{checkpoint.folder}: neither embeddings nor vocab_size are there")
    return size


def _path(checkpoint: Checkpoint, options: Options, about: About, file_type: str) -> Path:
    """Where to write: as asked, with the type filled in, or under the model's own name."""
    given = Path(options.output) if options.output else checkpoint.folder
    if not given.is_dir():
        return given.with_name(_filled(given.name, file_type))
    facts = {k: about.fields.get(k) for k in ("name", "basename", "finetune", "version")}
    made = names.file_name(
        **facts,
        size_label=None if options.vocab_only else about.fields.get("size_label"),
        output_type=None if options.vocab_only else file_type,
        kind="vocab" if options.vocab_only else None,
    )
    return given / f"{made}.gguf"


def _filled(name: str, file_type: str) -> str:
    lower, upper = file_type.lower(), file_type.upper()
    for mark, text in (("{}", lower), ("{ftype}", lower), ("{outtype}", lower)):
        name = name.replace(mark, text).replace(mark.upper(), upper)
    return name


def run(
    job: Job,
    *,
    on_done: Callable[[int], None] | None = None,
    on_compile: Callable[[], None] = lambda: None,
) -> list[str]:
    """Write the file or its parts, whose names are given. Nothing appears before all is done.

    on_done     told how many bytes of tensor data are written by now
    on_compile  told while kernels are compiled, which happens once on a machine
    """
    writer = _writer(job)
    for key, value, kind, element in metadata.typed(job.values):
        writer.add(key, value, kind, element)
    options, inputs = job.options, job.checkpoint.files
    with Data(job.tensors, job.chosen.kinds, options.threads, on_compile) as data:
        if not options.in_parts:
            writer.write(data.of, inputs=inputs, overwrite=options.overwrite, on_done=on_done)
            return [writer.path]
        return split.write_split(
            writer,
            data.of,
            **_split(options),
            inputs=inputs,
            overwrite=options.overwrite,
            on_done=on_done,
        )


def files(job: Job) -> list[str]:
    """The files that `run` writes."""
    groups = split.plan(_writer(job).tensors, **_split(job.options)) if job.options.in_parts else []
    if len(groups) < 2:
        return [os.fspath(job.path)]
    prefix = os.fspath(job.path).removesuffix(".gguf")
    return [split.part_name(prefix, i, len(groups)) for i in range(len(groups))]


def _writer(job: Job) -> GGUFWriter:
    """The writer with all tensors, and without metadata."""
    writer = GGUFWriter(job.path)
    for one in job.tensors:
        kind = codec.get(job.chosen.kinds[one.name])
        writer.add_tensor(one.name, one.ne, kind.type_id, job.bytes_of(one))
    return writer


def _split(options: Options) -> dict[str, Any]:
    return {
        "max_tensors": options.split_max_tensors,
        "max_size": options.split_max_size,
        "no_tensor_first_split": options.no_tensor_first_split,
        "rules": "converter",
    }
