"""Which type each converted tensor gets: by the converter's rules, or by those of quantization.

f32, f16, bf16, q8_0, tq1_0 and tq2_0 follow convert_hf_to_gguf.py (conversion/base.py); every other
file type gives what `llamapy quantize` would make of the converted file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llamapy.convert.plan import Stored, Tensor
from llamapy.core.errors import UsageError
from llamapy.gguf.header import TensorInfo
from llamapy.nn.params import Params
from llamapy.quants import api, codec
from llamapy.tasks import file_types
from llamapy.tasks.quantize_plan import Choices, Plan, plan

CONVERTED = ("F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0")
_ALWAYS_F32 = re.compile(r"(ffn_gate_inp|ffn_gate_inp_shexp|position_embd|token_types)\.weight$")
_HALF_IF_TERNARY = re.compile(r"^(token_embd|output)\.weight$")


@dataclass(frozen=True)
class Chosen:
    """The file type's name, and the type of each tensor in the order of the file."""

    name: str
    kinds: dict[str, str]
    fallbacks: tuple[str, ...] = ()  # texts that say which tensor has another type than asked

    @property
    def file_type(self) -> int:
        """The value of general.file_type."""
        return file_types.parse(self.name).id


def choose(
    outtype: str,
    tensors: Sequence[Tensor],
    sources: Mapping[str, Stored],
    params: Params,
    where: str,
) -> Chosen:
    """Decide. UsageError for a type that is none, or that needs importances."""
    wanted = guess(sources) if outtype.lower() == "auto" else file_types.parse(outtype).name
    if wanted == file_types.COPY.name:
        raise UsageError("a conversion has no tensors to copy", hint="--outtype auto keeps 16 bits")
    if wanted in CONVERTED:
        return _converted(wanted, tensors)
    made = _planned(wanted, tensors, params, where)
    needing = [one.name for one in made.tensors if one.kind in api.NEED_IMPORTANCE]
    if needing:
        raise UsageError(
            f"{wanted} needs an importance matrix: {needing[0]} would be {wanted.lower()}",
            hint="convert with --outtype bf16, then use `llamapy quantize --imatrix`",
        )
    fallbacks = tuple(f"{one.name} is {one.kind}: {one.reason}" for one in made.fallbacks)
    return Chosen(wanted, {one.name: one.kind for one in made.tensors}, fallbacks)


def guess(sources: Mapping[str, Stored]) -> str:
    """The 16-bit type of the first matrix that has one."""
    for one in sources.values():
        if len(one.shape) >= 2 and one.dtype in ("BF16", "F16"):
            return one.dtype
    return "F16"


def _converted(wanted: str, tensors: Sequence[Tensor]) -> Chosen:
    kinds: dict[str, str] = {}
    fallbacks: list[str] = []
    for one in tensors:
        kind = _kind(one, wanted)
        n_values = codec.get(kind).n_values
        if one.ne and one.ne[0] % n_values:
            fallbacks.append(f"{one.name} is f16: rows of {one.ne[0]}, blocks of {n_values}")
            kind = "f16"
        kinds[one.name] = kind
    return Chosen(wanted, kinds, tuple(fallbacks))


def _kind(one: Tensor, wanted: str) -> str:
    if keeps_f32(one):
        return "f32"
    if wanted.startswith("TQ") and _HALF_IF_TERNARY.search(one.name):
        return "f16"
    return wanted.lower()


def keeps_f32(one: Tensor) -> bool:
    """Whether the converter writes it as float32, whatever is asked."""
    return (
        len(one.ne) <= 1
        or one.name.endswith("_norm.weight")
        or not one.name.endswith(".weight")
        or _ALWAYS_F32.search(one.name) is not None
    )


class _Unwritten:
    """The converted file as the rules of quantization see it, without its being there."""

    def __init__(self, where: str, tensors: Sequence[Tensor], metadata: dict[str, Any]) -> None:
        self.path, self.metadata = where, metadata
        self.tensors = []
        for one in tensors:
            kind = codec.get("f32" if keeps_f32(one) else one.dtype.lower())
            n_bytes = kind.n_bytes * one.n_elements
            self.tensors.append(TensorInfo(one.name, one.ne, kind.type_id, 0, n_bytes))


def _planned(wanted: str, tensors: Sequence[Tensor], params: Params, where: str) -> Plan:
    facts: dict[str, Any] = {
        "general.architecture": params.arch,
        f"{params.arch}.block_count": params.n_layer,
        f"{params.arch}.expert_count": params.n_expert,
        f"{params.arch}.attention.head_count": params.n_head,
        f"{params.arch}.attention.head_count_kv": params.n_head_kv,
    }
    file: Any = _Unwritten(where, tensors, facts)
    return plan(file, file_types.parse(wanted), Choices())
