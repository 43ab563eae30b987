"""Which type each tensor of a file type gets: llama.cpp's rules (src/llama-quant.cpp) as tables.

Knows names, shapes and the few numbers of a model that the rules ask for; no files, no data. The
answer does not depend on the order of the tensors in a file: layers count by their number.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from llamapy.core.errors import QuantError
from llamapy.quants import codec
from llamapy.tasks.file_types import FileType

# -- what the rules know of a model


@dataclass(frozen=True, slots=True)
class Model:
    """The numbers of a model that decide: layers (with those of multi-token prediction), experts,
    query heads a key/value head of the first layer, and whether it counts as a "70B".
    """

    family: str = ""
    n_layer: int = 0
    n_expert: int = 0
    gqa: int = 1
    is_70b: bool = False
    has_importance: bool = False
    tied: bool = False  # there is no output.weight: the embeddings are also the output


@dataclass(frozen=True, slots=True)
class Case:
    """One tensor before the rules: `i` is its place among its kind, of `n`."""

    name: str
    ne: tuple[int, ...]
    model: Model
    base: str
    i: int = 0
    n: int = 0


Test = Callable[[Case], bool]

_FALCON = frozenset({"falcon"})
_EXPERTS_BY_ROLE = frozenset({"bailingmoe3"})  # its attention has 3-D tensors too


def more_bits(i: int, n: int) -> bool:
    """The first and the last eighth of the layers, and every third one between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


_TESTS: dict[str, Test] = {
    "gqa4": lambda c: c.model.gqa >= 4,
    "gqa4 or experts": lambda c: c.model.gqa >= 4 or c.model.n_expert >= 4,
    "8 experts": lambda c: c.model.n_expert == 8,
    "8 experts, more bits": lambda c: c.model.n_expert == 8 and more_bits(c.i, c.n),
    "not 8 experts": lambda c: c.model.n_expert != 8,
    "falcon": lambda c: c.model.family in _FALCON,
    "not falcon": lambda c: c.model.family not in _FALCON,
    "importance": lambda c: c.model.has_importance,
    "no importance": lambda c: not c.model.has_importance,
    "first two": lambda c: c.i < 2,
    "first four": lambda c: c.i < 4,
    "first eighth": lambda c: c.i < c.n // 8,
    "first sixteenth": lambda c: c.i < c.n // 16,
    "middle": lambda c: c.n // 8 <= c.i < 7 * c.n // 8,
    "more bits": lambda c: more_bits(c.i, c.n),
    "odd rows": lambda c: c.ne[0] % codec.get(c.base).n_values != 0,
    "expert matrices": lambda c: len(c.ne) > 2 and c.ne[2] > 1 and _is_expert(c),
    "base is not q8_0": lambda c: c.base != "q8_0",
}


def _is_expert(case: Case) -> bool:
    if case.model.family not in _EXPERTS_BY_ROLE:
        return True
    return category(case.name) in ("ffn_up", "ffn_gate", "ffn_down")


@dataclass(frozen=True, slots=True)
class Rule:
    """`kind` for these file types ("*": all) if all tests hold."""

    file_types: frozenset[str]
    kind: str
    tests: tuple[Test, ...]

    def fits(self, file_type: str, case: Case) -> bool:
        """Whether the rule speaks about this tensor."""
        named = file_type in self.file_types or "*" in self.file_types
        return named and all(test(case) for test in self.tests)


def _rules(table: str) -> tuple[Rule, ...]:
    """Lines of `FILE_TYPE ... -> kind` with tests, if any, after `if`, separated by `;`."""
    rules = []
    for line in table.strip().splitlines():
        names, _, rest = line.partition("->")
        kind, _, tests = rest.partition(" if ")
        named = [t.strip() for t in tests.split(";") if t.strip()]
        rules.append(
            Rule(frozenset(names.split()), kind.strip(), tuple(_TESTS[name] for name in named))
        )
    return tuple(rules)


# -- the rules: of a category, the first that fits; without one, the base type

_OUTPUT = _rules("""
MXFP4_MOE                                          -> q8_0
*                                                  -> q8_0 if falcon
*                                                  -> q8_0 if odd rows
IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ3_XXS     -> q5_K
*                                                  -> q6_K if base is not q8_0
""")

_MXFP4 = _rules("""
* -> mxfp4 if expert matrices
* -> q8_0
""")

_EMBEDDINGS = _rules("""
IQ1_S IQ1_M IQ2_XXS IQ2_XS -> q2_K
IQ2_S IQ2_M IQ3_XXS        -> iq3_s
TQ1_0 TQ2_0 Q2_0           -> q4_K
""")

_LOW = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})

_LOW_RULES = {
    "v": _rules("""
*           -> q4_K  if gqa4 or experts
IQ2_S IQ2_M -> iq3_s
*           -> q2_K
"""),
    "k": _rules("""
*           -> q4_K  if 8 experts
"""),
    "ffn_down": _rules("""
IQ2_S IQ2_M -> iq3_s if first eighth
*           -> q2_K  if first eighth
"""),
    "attn_output": _rules("""
*           -> q5_K  if 8 experts
IQ1_S IQ1_M -> iq2_xxs
IQ2_S IQ2_M -> iq3_s
"""),
}

_COMMON_RULES = {
    "v": _rules("""
*             -> q8_0    if 8 experts
Q2_K          -> q4_K    if gqa4
Q2_K          -> q3_K
Q2_K_S        -> q4_K    if gqa4
IQ3_XXS       -> q4_K    if gqa4
IQ3_XXS       -> iq3_s   if no importance
IQ3_XXS       -> iq3_xxs
IQ3_XS IQ3_S  -> q4_K    if gqa4
IQ3_M         -> q4_K
Q3_K_M        -> q5_K    if first two
Q3_K_M        -> q4_K
Q3_K_L        -> q5_K
IQ4_NL IQ4_XS -> q5_K    if gqa4
Q4_K_M Q5_K_M -> q6_K    if more bits
Q4_K_S        -> q5_K    if first four
"""),
    "k": _rules("""
*             -> q8_0    if 8 experts
IQ3_XS        -> iq3_xxs
IQ3_XXS       -> iq2_s
"""),
    "q": _rules("""
IQ3_XS        -> iq3_xxs
IQ3_XXS       -> iq2_s
"""),
    "ffn_down": _rules("""
Q2_K          -> q3_K
Q2_K_S        -> q4_K    if first eighth
IQ3_XXS       -> q4_K    if no importance; first eighth
IQ3_XXS       -> q3_K    if no importance
Q3_K_M        -> q5_K    if first sixteenth
Q3_K_M        -> q4_K    if not falcon
Q3_K_M        -> q4_K    if more bits
Q3_K_M        -> q3_K
IQ3_M         -> q4_K    if first eighth
IQ3_M         -> q4_K    if 8 experts, more bits
Q3_K_L        -> q4_K    if falcon
Q3_K_L        -> q5_K
Q4_K_M        -> q6_K    if falcon; first sixteenth
Q4_K_M        -> q5_K    if falcon; more bits
Q4_K_M        -> q4_K    if falcon
Q4_K_M Q5_K_M -> q6_K    if more bits
IQ4_NL IQ4_XS -> q5_K    if first eighth; no importance
Q4_K_S        -> q5_K    if not falcon; first eighth
Q4_0          -> q4_1    if importance; first eighth
Q5_0          -> q5_1    if importance; first eighth
"""),
    "attn_output": _rules("""
Q3_K_L        -> q4_K    if falcon
*             -> *       if falcon
Q2_K IQ3_XXS IQ3_XS IQ3_S IQ3_M Q3_K_S Q3_K_M IQ4_NL IQ4_XS Q4_K_S Q4_K_M -> q5_K if 8 experts
*             -> *       if 8 experts
Q2_K          -> q3_K
IQ3_XXS       -> iq3_s
Q3_K_M IQ3_M  -> q4_K
Q3_K_L        -> q5_K
"""),
    "ffn_gate": _rules("""
IQ3_XS        -> iq3_xxs if middle
"""),
    "ffn_up": _rules("""
IQ3_XS        -> iq3_xxs if middle
"""),
}

_RAISED_IN_70B = {"q3_K": "q5_K", "q4_K": "q5_K"}  # attn_v is small there: 8 heads share it

_AT_LEAST_Q8_0 = {"glm5-next": ("attn_q_a", "attn_q_b", "nextn.eh_proj")}

# -- categories

_CATEGORIES = (  # the first part of a name that is found decides
    ("attn_qkv.weight", "v"),
    ("attn_kv_b.weight", "v"),
    ("attn_v.weight", "v"),
    ("attn_k.weight", "k"),
    ("attn_q.weight", "q"),
    ("attn_output.weight", "attn_output"),
    ("ffn_up", "ffn_up"),
    ("ffn_gate", "ffn_gate"),
    ("ffn_down", "ffn_down"),
)
_COUNTED = ("v", "ffn_up", "ffn_gate", "ffn_down")


def category(name: str) -> str:
    """What a tensor is for the rules; "" for what they do not know."""
    if name == "output.weight":
        return "output"
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return "token_embd"
    return next((kind for part, kind in _CATEGORIES if part in name), "")


_NEVER = (  # parts of names of tensors that stay as they are
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_tid2eid.weight",
    "altup",
    "laurel",
    "per_layer_model_proj",
    "ssm_conv1d",
    "shortconv.conv.weight",
    "indexer.k_proj.weight",
    "indexer.q_proj.weight",
    "time_mix_first.weight",
    "time_mix_w0.weight",
    "time_mix_w1.weight",
    "time_mix_w2.weight",
    "time_mix_v0.weight",
    "time_mix_v1.weight",
    "time_mix_v2.weight",
    "time_mix_a0.weight",
    "time_mix_a1.weight",
    "time_mix_a2.weight",
    "time_mix_g1.weight",
    "time_mix_g2.weight",
    "time_mix_decay_w1.weight",
    "time_mix_decay_w2.weight",
    "time_mix_lerp_fused.weight",
    "attn_rel_b.weight",
    ".position_embd",
    "sam.pos_embd",
    "sam.neck.",
    "sam.net_",
    ".rel_pos",
    ".patch_embd",
    ".patch_merger",
    "a.rvq.codebook",
    "mm.a.code_embd",
)
_NEVER_WHOLE = ("position_embd.weight", "token_types.weight")
_NEVER_IN = {
    "glm5-next": (
        "hc_",
        "indexer.attn_q_b",
        "indexer.attn_k",
        "indexer.proj",
        "indexer_compressor_gate",
        "indexer_compressor_ape",
        "ssm_f_a.weight",
        "ssm_f_b.weight",
        "ssm_g_a.weight",
        "ssm_g_b.weight",
        "ssm_beta.weight",
        "attn_kv_a_mqa.weight",
        "attn_k_b.weight",
        "attn_v_b.weight",
    ),
}


def may_change(name: str, ne: Sequence[int], family: str) -> bool:
    """Whether a tensor of this name and shape (innermost first) is ever quantized."""
    n_dims = max((i + 1 for i, n in enumerate(ne) if n != 1), default=1)
    if n_dims < 2 or not name.endswith("weight") or name in _NEVER_WHOLE:
        return False
    return not any(part in name for part in _NEVER + _NEVER_IN.get(family, ()))


_LAYER = re.compile(r"blk\.(\d+)\.")


def layer_of(name: str) -> int:
    """The number of the block that a tensor is in; -1 outside the blocks."""
    match = _LAYER.match(name)
    return int(match[1]) if match else -1


def reading_order(name: str) -> tuple[int, bytes]:
    """Sort key of llama.cpp's order: outside the blocks first, then by block number, by name."""
    return layer_of(name), name.encode("utf-8", "surrogateescape")


# -- the decision


@dataclass(slots=True)
class Mix:
    """Goes through the tensors of a model in reading order and says the type that each gets."""

    file_type: FileType
    model: Model
    n_v: int  # V-like tensors of the file
    _seen: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, file_type: FileType, model: Model, names: Iterable[str]) -> Mix:
        """For a file with these tensors."""
        return cls(file_type, model, sum(category(name) == "v" for name in names))

    def kind(self, name: str, ne: Sequence[int]) -> str:
        """The type's name, before it is known whether rows divide. Call once a tensor."""
        base = self.file_type.base
        if any(part in name for part in _AT_LEAST_Q8_0.get(self.model.family, ())):
            return "q8_0"
        group = category(name)
        is_output = group == "output" or (group == "token_embd" and self.model.tied)
        rules: tuple[Rule, ...]
        if is_output:
            rules = _OUTPUT
        elif self.file_type.name == "MXFP4_MOE":
            rules = _MXFP4
        elif group == "token_embd":
            rules = _EMBEDDINGS
        else:
            low = self.file_type.name in _LOW
            rules = (_LOW_RULES if low else _COMMON_RULES).get(group, ())
        case = self._case(name, tuple(ne), group)
        found = next((r.kind for r in rules if r.fits(self.file_type.name, case)), "*")
        found = base if found == "*" else found
        if group == "v" and self.model.is_70b and self.file_type.name not in _LOW:
            found = _RAISED_IN_70B.get(found, found)
        return found

    def skip(self, name: str) -> None:
        """Count a tensor that somebody else decides, so that it keeps its place."""
        self._seen[category(name)] += category(name) in _COUNTED

    def _case(self, name: str, ne: tuple[int, ...], group: str) -> Case:
        """The tensor's place: V-likes count as they come, so do feed-forward ones without experts,
        with experts the block says it (several tensors are then of one layer).
        """
        i = self._seen[group]
        self._seen[group] += group in _COUNTED
        by_block = self.model.n_expert > 1 and self.file_type.name not in _LOW
        if group != "v" and by_block and layer_of(name) >= 0:
            i = layer_of(name)
        n = self.n_v if group == "v" else self.model.n_layer
        return Case(name, ne, self.model, self.file_type.base, i, n)


# -- rows that do not divide

_FALLBACK = {
    "iq1_s": "iq4_nl",
    "iq1_m": "iq4_nl",
    "iq2_xxs": "iq4_nl",
    "iq2_xs": "iq4_nl",
    "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl",
    "iq3_s": "iq4_nl",
    "iq4_xs": "iq4_nl",
    "q1_0": "q4_0",  # llama.cpp has none for q1_0 and nvfp4, and stops
    "nvfp4": "q4_0",
    "q2_0": "q4_0",
    "q2_K": "q4_0",
    "q3_K": "q4_0",
    "tq1_0": "q4_0",
    "tq2_0": "q4_0",
    "q4_K": "q5_0",
    "q5_K": "q5_1",
    "q6_K": "q8_0",
}


def fallback(kind: str, n_per_row: int) -> str:
    """The type that takes the place of `kind` for rows that it does not divide; else `kind`."""
    if n_per_row % codec.get(kind).n_values == 0:
        return kind
    other = _FALLBACK.get(kind, "f16")
    return other if n_per_row % codec.get(other).n_values == 0 else "f16"


_WANT_IMPORTANCE = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs"})


def wants_importance(name: str, kind: str, file_type: FileType) -> bool:
    """Whether llama.cpp refuses to make this tensor without importances."""
    if category(name) in ("output", "token_embd"):
        return False
    return kind in _WANT_IMPORTANCE or (kind == "q2_K" and file_type.name == "Q2_K_S")


def check_kind(kind: str) -> str:
    """The tensor type's own spelling. QuantError for what nothing is quantized to."""
    found = codec.get(kind)
    if found.encode is None or found.name in ("q8_1", "q8_K", "f64"):
        raise QuantError(f"no tensor can be made {found.name}")
    return found.name
