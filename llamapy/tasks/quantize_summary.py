"""What came of a quantization, or would come: tensors, parameters and bytes by type, fallbacks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamapy.quants import codec
from llamapy.tasks.quantize_plan import Plan, Planned


@dataclass(frozen=True)
class TypeSum:
    """All tensors of one type. `share` is of the parameters of the file."""

    kind: str
    tensors: int
    parameters: int
    n_bytes: int
    share: float

    @property
    def bits_per_weight(self) -> float:
        """Bits of tensor data a parameter."""
        return 8 * self.n_bytes / self.parameters if self.parameters else 0.0


@dataclass(frozen=True)
class Summary:
    """Totals of a plan."""

    title: str
    types: list[TypeSum]
    total: TypeSum
    bits_asked: float  # had all rows divided
    n_bytes_before: int
    fallbacks: list[Planned]
    fallback_share: float

    def as_json(self) -> dict[str, Any]:
        """In dicts and lists."""
        return {
            "types": {one.kind: _json(one) for one in self.types},
            "total": _json(self.total) | {"n_bytes_before": self.n_bytes_before},
            "bits_per_weight_asked": round(self.bits_asked, 5),
            "fallbacks": [
                {"name": one.name, "asked": one.asked, "got": one.kind, "reason": one.reason}
                for one in self.fallbacks
            ],
        }


def _json(one: TypeSum) -> dict[str, Any]:
    return {
        "tensors": one.tensors,
        "parameters": one.parameters,
        "n_bytes": one.n_bytes,
        "share": round(one.share, 6),
        "bits_per_weight": round(one.bits_per_weight, 5),
    }


def summarize(plan: Plan) -> Summary:
    """Add up a plan."""
    n_all = sum(one.info.n_elements for one in plan.tensors)

    def added(kind: str, several: list[Planned]) -> TypeSum:
        n = sum(one.info.n_elements for one in several)
        n_bytes = sum(one.n_bytes for one in several)
        return TypeSum(kind, len(several), n, n_bytes, n / n_all if n_all else 0.0)

    by_kind: dict[str, list[Planned]] = {}
    for one in plan.tensors:
        by_kind.setdefault(one.kind, []).append(one)
    types = [added(kind, several) for kind, several in by_kind.items()]
    types.sort(key=lambda one: (-one.n_bytes, codec.get(one.kind).type_id))
    asked = 8 * sum(one.n_bytes_asked for one in plan.tensors) / n_all if n_all else 0.0
    short = sum(one.info.n_elements for one in plan.fallbacks)
    return Summary(
        plan.title,
        types,
        added("all", plan.tensors),
        asked if plan.bits_asked is None else plan.bits_asked,
        sum(one.info.n_bytes for one in plan.tensors),
        plan.fallbacks,
        short / n_all if n_all else 0.0,
    )


def tensor_json(one: Planned) -> dict[str, Any]:
    """One tensor of a plan in a dict."""
    found: dict[str, Any] = {
        "name": one.name,
        "shape": list(one.info.ne),
        "from": one.source,
        "to": one.kind,
        "n_bytes": one.n_bytes,
    }
    return found | ({"asked": one.asked, "reason": one.reason} if one.reason else {})
