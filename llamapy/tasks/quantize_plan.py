"""What a quantization will make of a file, known from its header alone: types, sizes, metadata.

Follows llama.cpp (src/llama-quant.cpp) in which option beats which, and in the order of tensors and
keys. Reads no tensor data and writes nothing.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llamapy.core.errors import ModelError, QuantError, UsageError
from llamapy.gguf import keys
from llamapy.gguf.limits import shown
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.reader import TensorInfo
from llamapy.quants import codec
from llamapy.tasks import mixes
from llamapy.tasks.file_types import FileType
from llamapy.tasks.inspect import AnyFile

Choose = Callable[[str, tuple[int, ...], int], str | None]
Override = bool | int | float | str

KEEP = "keep"  # as a type of a recipe or a callback: leave the tensor as it is
_PRUNABLE = re.compile(r"blk\.(\d+)\.")
_IS_70B = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}  # by number of layers
_70B_HAS_GROUPS = frozenset({"llama"})  # with a head each it is the older 65B


@dataclass(frozen=True)
class Choices:
    """What the user says about types. Patterns are regular expressions; the first found counts.

    tensor_types  (pattern, type) that only count for quantized file types, as in llama-quantize
    recipe        (pattern, type) that always count; the type may be "keep"
    choose        asked first: choose(name, shape, layer) gives a type, "keep", or None to go on;
                  shape is innermost first, layer -1 outside the blocks
    """

    tensor_types: Sequence[tuple[str, str]] = ()
    recipe: Sequence[tuple[str, str]] = ()
    choose: Choose | None = None
    output: str = ""
    token_embedding: str = ""
    pure: bool = False
    leave_output: bool = False
    no_fallback: bool = False
    allow_requantize: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor of the output: `info` is where it comes from."""

    info: TensorInfo
    name: str  # with its new layer number, if layers go
    kind: str
    asked: str  # the type before rows that do not divide made it `kind`
    reason: str = ""  # why it is `kind` and not `asked`
    free: bool = False  # the file type decided, nobody named the tensor

    @property
    def source(self) -> str:
        """The type's name in the input."""
        return codec.get(self.info.type_id).name

    @property
    def changes(self) -> bool:
        """Whether the tensor is quantized or converted, not copied."""
        return self.source != self.kind

    @property
    def n_bytes(self) -> int:
        """Bytes in the output."""
        return bytes_as(self.info, self.kind)

    @property
    def n_bytes_asked(self) -> float:
        """Bytes of the type that was asked, had the rows divided."""
        return self.info.n_elements * codec.get(self.asked).bpw() / 8


def bytes_as(info: TensorInfo, kind: str) -> int:
    """Bytes of a tensor in another type."""
    row = info.ne[0] if info.ne else 1
    return codec.get(kind).row_bytes(row) * (info.n_elements // row) if row else 0


@dataclass
class Plan:
    """Everything about the output that the header and the options decide."""

    file_type: FileType
    tensors: list[Planned]
    overrides: dict[str, Override] = field(default_factory=dict)
    n_layer: int | None = None  # what is left of them, if layers go
    warnings: list[str] = field(default_factory=list)
    bits_asked: float | None = None  # bits per weight, if the user asked for that

    @property
    def title(self) -> str:
        """The file type for people, who may have asked for a size instead."""
        if self.bits_asked is None:
            return self.file_type.name
        return f"mostly {self.file_type.name}, {self.bits_asked:.4g} bits per weight"

    @property
    def fallbacks(self) -> list[Planned]:
        """Tensors whose type is not the one that was asked."""
        return [one for one in self.tensors if one.reason]


def model_facts(
    metadata: Metadata, overrides: Mapping[str, Override], names: Sequence[str], importance: bool
) -> mixes.Model:
    """What the rules of mixes.py ask, from metadata; overrides count as if the file said so."""
    family = str(metadata.get(keys.ARCHITECTURE, ""))

    def number(suffix: str, default: int) -> int:
        key = keys.of(family, suffix)
        value = overrides.get(key, metadata.get(key, default))
        value = value[0] if isinstance(value, list) and value else value
        return int(value) if isinstance(value, int | float) else default

    n_layer, n_head = number("block_count", 0), number("attention.head_count", 0)
    n_head_kv = number("attention.head_count_kv", n_head)
    own_layers = n_layer - number("nextn_predict_layers", 0)
    grouped = family not in _70B_HAS_GROUPS or n_head != n_head_kv
    return mixes.Model(
        family=family,
        n_layer=n_layer,
        n_expert=number("expert_count", 0),
        gqa=n_head // n_head_kv if n_head_kv else 0,
        is_70b=_IS_70B.get(family) == own_layers and grouped,
        has_importance=importance,
        tied=not any(mixes.category(name) == "output" for name in names),
    )


def plan(
    file: AnyFile,
    file_type: FileType,
    choices: Choices = Choices(),
    *,
    importance: bool = False,
    keep_split: bool = False,
    prune_layers: Sequence[int] = (),
    overrides: Mapping[str, Override] | None = None,
) -> Plan:
    """Decide everything. QuantError, ModelError or UsageError says what cannot be done."""
    overrides = dict(overrides or {})
    kept, n_layer = _kept(file, prune_layers)
    names = [name for _, name in kept]
    facts = model_facts(file.metadata, overrides, names, importance)
    chooser = _Chooser(file_type, facts, choices, names)
    planned = [chooser.planned(info, name) for info, name in kept]
    _refuse(file, planned, choices)
    if keep_split:
        planned.sort(key=lambda one: (one.info.part, one.info.offset))
    return Plan(file_type, planned, overrides, n_layer, list(chooser.warnings()))


def _kept(
    file: AnyFile, prune_layers: Sequence[int]
) -> tuple[list[tuple[TensorInfo, str]], int | None]:
    """The tensors that stay, in reading order, with their new names; and how many layers stay."""
    infos = sorted(file.tensors, key=lambda info: mixes.reading_order(info.name))
    if not prune_layers:
        return [(info, info.name) for info in infos], None
    blocks = sorted({int(m[1]) for info in infos if (m := _PRUNABLE.search(info.name))})
    unknown = sorted(set(prune_layers) - set(blocks))
    if unknown:
        have = f"{blocks[0]} to {blocks[-1]}" if blocks else "none"
        raise UsageError(
            f"{file.path}: no layers {', '.join(map(str, unknown))}", hint=f"there are {have}"
        )
    left = [block for block in blocks if block not in set(prune_layers)]
    renamed = {block: i for i, block in enumerate(left)}
    kept = []
    for info in infos:
        match = _PRUNABLE.search(info.name)
        if match is None:
            kept.append((info, info.name))
        elif int(match[1]) in renamed:
            start, end = match.span(1)
            new = f"{info.name[:start]}{renamed[int(match[1])]}{info.name[end:]}"
            kept.append((info, new))
    return kept, len(left)


def pattern(text: str) -> re.Pattern[str]:
    """A compiled pattern. UsageError if it is no regular expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return re.compile(text)
    except re.error as error:
        raise UsageError(f"{text!r} is not a regular expression: {error}") from None


class _Chooser:
    """Asks the user's choices and the mix, in llama.cpp's order, for the type of each tensor."""

    def __init__(
        self, file_type: FileType, model: mixes.Model, choices: Choices, names: Sequence[str]
    ) -> None:
        self.file_type, self.model, self.choices = file_type, model, choices
        self.mix = mixes.Mix.of(file_type, model, names)
        self.quantized = codec.get(file_type.base).n_values > 1
        listed = [*choices.tensor_types] if self.quantized else []
        self.patterns = [(pattern(p), mixes.check_kind(kind)) for p, kind in listed]
        self.recipe = [(pattern(p), self._named(kind)) for p, kind in choices.recipe]
        self.output = choices.output and mixes.check_kind(choices.output)
        self.embedding = choices.token_embedding and mixes.check_kind(choices.token_embedding)
        self.used: Counter[str] = Counter()

    @staticmethod
    def _named(kind: str) -> str:
        return KEEP if kind.lower() == KEEP else mixes.check_kind(kind)

    def planned(self, info: TensorInfo, name: str) -> Planned:
        """The tensor with its type."""
        source = codec.get(info.type_id).name
        ne = info.ne or (1,)
        if not self._may_change(name, ne):
            return Planned(info, name, source, source)
        named = self._named_kind(name, ne)
        kind = named or self._mixed(name, ne)
        if kind == KEEP:
            return Planned(info, name, source, source)
        real = mixes.fallback(kind, ne[0])
        block = codec.get(kind).n_values
        why = f"rows of {ne[0]} do not divide into {kind} blocks of {block}"
        return Planned(info, name, real, kind, "" if real == kind else why, not named)

    def _may_change(self, name: str, ne: tuple[int, ...]) -> bool:
        if self.file_type.copies or (self.choices.leave_output and name == "output.weight"):
            return False
        return mixes.may_change(name, ne, self.model.family)

    def _named_kind(self, name: str, ne: tuple[int, ...]) -> str:
        """What the user says of this tensor; empty if nothing. llama-quantize's order of options,
        behind the callback and the recipe.
        """
        own = self._own_kind(name, ne)
        if own:
            self.mix.skip(name)
            return own
        group = mixes.category(name)
        named = self._first(self.patterns, name)
        if self.embedding and group == "token_embd":
            # The embeddings by layer are a large table of their own that may be named apart.
            return named if named and name.startswith("per_layer") else self.embedding
        if self.output and group == "output":
            return self.output
        tied_output = self.output and self.model.tied and group == "token_embd"
        if not named and tied_output and self.quantized and not self.choices.pure:
            return self.output
        return named

    def _own_kind(self, name: str, ne: tuple[int, ...]) -> str:
        """What the callback or the recipe says; llama-quantize has neither."""
        if self.choices.choose is not None:
            chosen = self.choices.choose(name, ne, mixes.layer_of(name))
            if chosen is not None:
                return self._named(chosen)
        return self._first(self.recipe, name)

    def _mixed(self, name: str, ne: tuple[int, ...]) -> str:
        """What the file type says."""
        plain = not self.quantized or self.choices.pure
        return self.file_type.base if plain else self.mix.kind(name, ne)

    def _first(self, patterns: Sequence[tuple[re.Pattern[str], str]], name: str) -> str:
        for expression, kind in patterns:
            if expression.search(name):
                self.used[expression.pattern] += 1
                return kind
        return ""

    def warnings(self) -> Iterator[str]:
        """Patterns that did nothing."""
        if self.choices.tensor_types and not self.quantized:
            yield f"--tensor-type has no effect: {self.file_type.name} is not a quantized type"
        for expression, kind in [*self.patterns, *self.recipe]:
            if not self.used[expression.pattern]:
                yield f"the pattern {expression.pattern!r} ({kind}) decides no tensor"


def _refuse(file: AnyFile, planned: Sequence[Planned], choices: Choices) -> None:
    """Raise for what the options do not allow."""
    fallbacks = [one for one in planned if one.reason]
    if choices.no_fallback and fallbacks:
        shown_names = ", ".join(f"{shown(one.name)} ({one.reason})" for one in fallbacks[:4])
        more = f" and {len(fallbacks) - 4} more" if len(fallbacks) > 4 else ""
        raise QuantError(
            f"{file.path}: {len(fallbacks)} of {len(planned)} tensors cannot have their type:"
            f" {shown_names}{more}",
            hint="leave out --no-fallback, or give them another type with --tensor-type",
        )
    for one in planned:
        source = codec.get(one.info.type_id)
        if not one.changes:
            continue
        if source.n_values > 1 and not choices.allow_requantize:
            raise QuantError(
                f"{file.path}: tensor {shown(one.name)} is already {source.name}",
                hint="--allow-requantize makes it anew, which loses more than starting from F16",
            )
        if source.name.startswith("i") and source.n_values == 1:
            raise ModelError(
                f"{file.path}: tensor {shown(one.name)} holds integers ({source.name})"
                f" and cannot become {one.kind}"
            )


def with_kinds(plan: Plan, kinds: Mapping[str, str]) -> Plan:
    """The plan with other types for some tensors, by name."""
    changed = [
        replace(one, kind=kinds[one.name], asked=kinds[one.name], reason="")
        if one.name in kinds
        else one
        for one in plan.tensors
    ]
    return replace(plan, tensors=changed)
