"""Quantize a GGUF file: what `llamapy quantize` does, for programs. Prints nothing.

The file is that of llama.cpp's own tool, byte for byte, where that is deterministic and consistent;
docs/quantize.md says where it is not.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llamapy.backend.cpu import threads as cpu_threads
from llamapy.core.errors import QuantError, UsageError
from llamapy.gguf import keys, split
from llamapy.gguf.header import TensorInfo
from llamapy.gguf.output import PendingFiles
from llamapy.gguf.values import ValueType, to_bytes, to_text
from llamapy.gguf.writer import GGUFWriter
from llamapy.quants import codec
from llamapy.tasks import budget, file_types, importance, importance_use
from llamapy.tasks.budget import Choice, Measured
from llamapy.tasks.file_types import FileType
from llamapy.tasks.importance_use import Importances
from llamapy.tasks.inspect import AnyFile
from llamapy.tasks.quantize_checks import check_inputs
from llamapy.tasks.quantize_plan import Choices, Override, Plan, plan
from llamapy.tasks.quantize_rows import Encoder
from llamapy.tasks.tensor_error import TensorError

QUANTIZATION_VERSION = 2  # GGML_QNT_VERSION
_IMATRIX = "quantize.imatrix."
_MAX_TEXT = 127  # bytes that llama.cpp keeps of an overriding text

Path = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Told what is done (a tensor's name, "checking", "compiling"), bytes done and bytes in all."""


@dataclass(frozen=True)
class Options:
    """How to quantize; what Choices holds says about types. `threads` 0 takes what there is."""

    choices: Choices = field(default_factory=Choices)
    imatrix: Path | importance.Imatrix | None = None
    include_weights: Sequence[str] = ()
    exclude_weights: Sequence[str] = ()
    keep_split: bool = False
    prune_layers: Sequence[int] = ()
    overrides: Mapping[str, Override] = field(default_factory=dict)
    threads: int = 0
    allow_nonfinite: bool = False
    overwrite: bool = False


@dataclass
class Job:
    """A quantization that is decided but not done. Close the file that it reads with `with`."""

    file: AnyFile
    options: Options
    plan: Plan
    importances: Importances | None
    imatrix: importance.Imatrix | None
    imatrix_name: str = ""
    warnings: list[str] = field(default_factory=list)
    errors: dict[str, TensorError] = field(default_factory=dict)  # after `run` with `measure`
    trades: list[tuple[Measured, Choice]] = field(default_factory=list)  # after `fit`

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


def prepare(source: Path, file_type: str | FileType, options: Options | None = None) -> Job:
    """Open a file and decide what becomes of it. Everything that can be refused now is."""
    options = options or Options()
    wanted = file_types.parse(file_type) if isinstance(file_type, str) else file_type
    if options.include_weights and options.exclude_weights:
        raise UsageError("--include-weights and --exclude-weights do not go together")
    given = options.imatrix
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else ""
    imatrix = importance.read(name) if name else given
    assert not isinstance(imatrix, str | os.PathLike)
    entries = {}
    if imatrix is not None:
        chosen = importance_use.chosen(imatrix, options.include_weights, options.exclude_weights)
        entries = chosen
    file = split.open_split(source, mmap=False, type_sizes=codec.type_sizes)
    try:
        planned = plan(
            file,
            wanted,
            options.choices,
            importance=bool(entries),
            keep_split=options.keep_split,
            prune_layers=options.prune_layers,
            overrides=options.overrides,
        )
        job = Job(file, options, planned, None, imatrix, name, list(planned.warnings))
        if imatrix is not None and entries:
            job.importances = importance_use.for_plan(
                imatrix, entries, planned, allow_nonfinite=options.allow_nonfinite
            )
            job.warnings += job.importances.warnings
    except BaseException:
        file.close()
        raise
    return job


def fit(
    job: Job,
    *,
    bits_per_weight: float = 0.0,
    n_bytes: int = 0,
    on_progress: Progress | None = None,
) -> None:
    """Give the tensors that the user has not named the types of least error at this size.

    bits_per_weight  of all parameters of the file
    n_bytes          of the whole output, if that is what is asked for
    QuantError names the least size if that is more.
    """
    free = {one.name for one in job.plan.tensors if one.free}
    if not free:
        raise QuantError(f"{job.file.path}: no tensor is left whose type could be chosen")
    n_all = sum(one.info.n_elements for one in job.plan.tensors)
    fixed = sum(one.n_bytes for one in job.plan.tensors if one.name not in free)
    header = make_writer(job, job.file.path).layout().header
    around = len(header) + len(job.plan.tensors) * job.file.alignment  # padding at most
    room = n_bytes - around if n_bytes else int(bits_per_weight * n_all / 8)
    threads = cpu_threads.choose(job.options.threads)
    measured = budget.measure(job.file, job.plan, job.importances, threads, on_progress)
    least = fixed + sum(min(choice.n_bytes for choice in one.choices) for one in measured)
    if least > room:
        raise QuantError(
            f"{job.file.path} cannot be that small: at least {8 * least / n_all:.3f} bits per"
            f" weight, {least + around:,} bytes",
            hint="importances (--imatrix) allow smaller types",
        )
    chosen = budget.choose(measured, room - fixed)
    job.plan = budget.apply(job.plan, measured, chosen)
    job.plan.bits_asked = 8 * room / n_all if n_all else 0.0
    job.trades = list(zip(measured, chosen))


def run(
    job: Job,
    target: Path,
    *,
    on_progress: Progress | None = None,
    measure: bool = False,
) -> list[str]:
    """Quantize and write; the names of the files written. Nothing appears before all is done."""
    importance_use.require(job.plan, job.plan.file_type, job.importances)
    threads = cpu_threads.choose(job.options.threads)
    tell = on_progress or (lambda what, done, total: None)
    writer = make_writer(job, target)
    _preflight(job, writer)
    total_in = sum(one.info.n_bytes for one in job.plan.tensors)
    sizes = check_inputs(
        job.file,
        job.plan.tensors,
        threads,
        allow_nonfinite=job.options.allow_nonfinite,
        warnings=job.warnings,
        on_done=lambda done: tell("checking", done, total_in),
    )
    tell("compiling", 0, total_in)  # by the encoder; once a machine, else it is over at once
    with Encoder(
        job.file,
        job.plan.tensors,
        threads,
        importances=job.importances,
        sizes=sizes,
        measure=measure,
        lenient=job.options.allow_nonfinite,
    ) as encoder:
        progress = _Progress(job.plan, tell)
        paths = _write(job, writer, encoder, progress.told)
    job.warnings += encoder.warnings
    job.errors = encoder.errors
    return paths


class _Progress:
    """Turns bytes written into bytes read, which are known from the start and go on evenly."""

    def __init__(self, plan: Plan, tell: Progress) -> None:
        self.tell, self.tensors = tell, plan.tensors
        self.total = sum(one.info.n_bytes for one in plan.tensors)
        self.index, self.written, self.read = 0, 0, 0

    def told(self, done: int) -> None:
        """`done` bytes of tensor data are written."""
        while self.index < len(self.tensors):
            one = self.tensors[self.index]
            if done < self.written + one.n_bytes:
                part = (done - self.written) / max(one.n_bytes, 1) * one.info.n_bytes
                self.tell(one.name, self.read + int(part), self.total)
                return
            self.written += one.n_bytes
            self.read += one.info.n_bytes
            self.index += 1
        self.tell(self.tensors[-1].name if self.tensors else "", self.total, self.total)


def make_writer(job: Job, target: Path) -> GGUFWriter:
    """The writer with all metadata and tensors, in llama.cpp's order."""
    file, made = job.file, job.plan
    writer = GGUFWriter(target, trim_dims=True)
    writer.add_all(file.metadata, skip=(keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS))
    writer.replace(keys.QUANTIZATION_VERSION, QUANTIZATION_VERSION, ValueType.UINT32)
    writer.replace(keys.FILE_TYPE, _file_type(file, made.file_type), ValueType.UINT32)
    for key, value in {**made.overrides, **_imatrix_keys(job)}.items():
        writer.replace(key, value, _override_kind(value))
    if made.n_layer is not None:
        key = keys.of(str(file.metadata.get(keys.ARCHITECTURE, "")), "block_count")
        writer.replace(key, made.n_layer, ValueType.UINT32)
    for one in made.tensors:
        writer.add_tensor(one.name, one.info.ne, codec.get(one.kind).type_id, one.n_bytes)
    return writer


def _file_type(file: AnyFile, wanted: FileType) -> int:
    if not wanted.copies:
        return wanted.id
    value = file.metadata.get(keys.FILE_TYPE)
    if isinstance(value, int):
        return value
    return file_types.guess(info.type_id for info in file.tensors)


def _override_kind(value: Override) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return ValueType.UINT32
    return ValueType.FLOAT32 if isinstance(value, float) else ValueType.STRING


def _imatrix_keys(job: Job) -> dict[str, Override]:
    """What the file says about its importances; texts are cut as llama.cpp cuts them."""
    if job.imatrix is None or job.importances is None:
        return {}
    found: dict[str, Override] = {}
    if job.imatrix_name:
        found[f"{_IMATRIX}file"] = _cut(job.imatrix_name)
    if job.imatrix.datasets:
        found[f"{_IMATRIX}dataset"] = _cut(job.imatrix.datasets[0])
    found[f"{_IMATRIX}entries_count"] = job.importances.n_entries
    if job.imatrix.chunk_count > 0:
        found[f"{_IMATRIX}chunks_count"] = job.imatrix.chunk_count
    return found


def _cut(text: str) -> str:
    return to_text(to_bytes(text)[:_MAX_TEXT])


def _inputs(job: Job) -> list[str]:
    """Files that must survive."""
    parts = job.file.parts if isinstance(job.file, split.SplitFile) else [job.file]
    return [part.path for part in parts] + ([job.imatrix_name] if job.imatrix_name else [])


def _preflight(job: Job, writer: GGUFWriter) -> None:
    """Refuse an output that cannot be written, before the work: OutputError says why."""
    layout = writer.layout()
    targets = [
        (path, layout.n_bytes // len(paths)) for paths in [_paths(job, writer)] for path in paths
    ]
    with PendingFiles(targets, inputs=_inputs(job), overwrite=job.options.overwrite):
        pass  # nothing is opened: only looked at


def _paths(job: Job, writer: GGUFWriter) -> list[str]:
    """Names of the files to be written."""
    if not job.options.keep_split:
        return [writer.path]
    n_parts = 1 + max((one.info.part for one in job.plan.tensors), default=0)
    prefix = writer.path.removesuffix(".gguf")
    return [split.part_name(prefix, i, n_parts) for i in range(n_parts)]


def _write(
    job: Job, writer: GGUFWriter, encoder: Encoder, on_done: Callable[[int], None]
) -> list[str]:
    paths, inputs = _paths(job, writer), _inputs(job)
    items, overwrite = encoder.items(), job.options.overwrite
    if len(paths) == 1:
        writer.path = paths[0]
        writer.write(items, inputs=inputs, overwrite=overwrite, on_done=on_done)
        return paths
    groups: list[list[TensorInfo]] = [[] for _ in paths]
    for one, info in zip(job.plan.tensors, writer.tensors):
        groups[one.info.part].append(info)
    return split.write_groups(
        writer,
        groups,
        items,
        rules="converter",
        inputs=inputs,
        overwrite=overwrite,
        on_done=on_done,
    )


def quantize_file(
    source: Path,
    target: Path,
    file_type: str,
    options: Options | None = None,
    *,
    on_progress: Progress | None = None,
    **changes: object,
) -> Job:
    """Quantize in one call; `changes` are fields of Options or Choices.

    quantize_file("m.gguf", "m-q4.gguf", "q4_k_m", threads=2, pure=True)
    """
    options = options or Options()
    own = {k: v for k, v in changes.items() if k in Options.__dataclass_fields__}
    types = {k: v for k, v in changes.items() if k not in own}
    unknown = set(types) - set(Choices.__dataclass_fields__)
    if unknown:
        raise UsageError(f"unknown options: {', '.join(sorted(unknown))}")
    choices = replace(options.choices, **types)  # type: ignore[arg-type]
    options = replace(options, **{"choices": choices, **own})  # type: ignore[arg-type]
    with prepare(source, file_type, options) as job:
        run(job, target, on_progress=on_progress)
    return job
