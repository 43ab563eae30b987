"""Hyperparameters: each field names its GGUF key and its Hugging Face config names at once.

Knows the keys that many architectures share; an architecture adds its own in a subclass. Metadata
is read as strictly as llama.cpp reads it: a u32 key must be a u32.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import isfinite, log
from types import SimpleNamespace
from typing import Any, Self

from llamapy.core.errors import ModelError
from llamapy.gguf import keys
from llamapy.gguf.metadata import Metadata
from llamapy.gguf.values import ValueType
from llamapy.nn import hf
from llamapy.nn.rope import Rope

REQUIRED: Any = object()
SKIP = "skip"  # metadata mark of a field that has no key

_SCALARS = {
    int: ValueType.UINT32,
    float: ValueType.FLOAT32,
    bool: ValueType.BOOL,
    str: ValueType.STRING,
}
_INTEGERS = (ValueType.UINT32, ValueType.INT32)

Config = Mapping[str, Any]
HfName = str | Callable[[Config], Any]


def key(name: str, *, hf: HfName | tuple[HfName, ...] = (), default: Any = REQUIRED) -> Any:
    """A field of Params.

    name     the GGUF key without the architecture's prefix
    hf       where a Hugging Face config has it: names (dotted for nested ones) or functions of the
             config that give None if they find nothing; the first that is there counts
    default  the value if the file has none, or a function of the fields before (as attributes)
    """
    names = hf if isinstance(hf, tuple) else (hf,)
    return field(metadata={"key": name, "hf": names, "default": default})


def per_head(p: Any) -> int:
    """Values a head, if nothing else is said."""
    return int(p.n_embd // max(1, p.n_head))


@dataclass(frozen=True, kw_only=True)
class Params:
    """What the graphs of most architectures need to know. Sizes count values, not bytes.

    `float` fields that are 0 and `str` fields that are "" are absent.
    """

    arch: str = field(metadata={"key": SKIP})
    n_vocab: int = field(metadata={"key": SKIP})
    n_ctx_train: int = key("context_length", hf=("max_position_embeddings", "n_positions", "n_ctx"))
    n_embd: int = key("embedding_length", hf=("hidden_size", "n_embd", "d_model"))
    n_layer: int = key("block_count", hf=("num_hidden_layers", "n_layer", "n_layers"))
    n_ff: int = key("feed_forward_length", hf=("intermediate_size", "n_inner"), default=0)
    n_head: int = key("attention.head_count", hf=("num_attention_heads", "n_head"))
    n_head_kv: int = key(
        "attention.head_count_kv",
        hf=("num_key_value_heads", "n_head_kv"),
        default=lambda p: p.n_head,
    )
    n_embd_head: int = key("attention.key_length", hf="head_dim", default=per_head)
    n_embd_head_v: int = key("attention.value_length", hf="head_dim", default=per_head)
    norm_rms_eps: float = key("attention.layer_norm_rms_epsilon", hf="rms_norm_eps", default=0.0)
    norm_eps: float = key(
        "attention.layer_norm_epsilon",
        hf=("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
        default=0.0,
    )
    causal: bool = key(
        "attention.causal",
        hf=lambda c: False if c.get("is_causal") is False else None,
        default=True,
    )
    attn_scale: float = key("attention.scale", default=0.0)
    n_window: int = key("attention.sliding_window", hf="sliding_window", default=0)
    n_rot: int = key("rope.dimension_count", default=lambda p: p.n_embd_head)
    rope_freq_base: float = key(
        "rope.freq_base",
        hf=("rope.theta", "rope_theta", "rope_parameters.rope_theta", "rotary_emb_base"),
        default=10000.0,
    )
    rope_scaling: str = key("rope.scaling.type", hf="rope.scaling", default="linear")
    rope_factor: float = key("rope.scaling.factor", hf=hf.scaled("factor"), default=0.0)
    rope_scale_linear: float = key("rope.scale_linear", default=0.0)  # the factor's old name
    rope_attn_factor: float = key("rope.scaling.attn_factor", default=1.0)
    rope_n_ctx_orig: int = key(
        "rope.scaling.original_context_length",
        hf=hf.yarn("n_ctx_orig"),
        default=lambda p: p.n_ctx_train,
    )
    rope_yarn_log_mul: float = key("rope.scaling.yarn_log_multiplier", default=0.0)
    rope_yarn_ext_factor: float = key(
        "rope.scaling.yarn_ext_factor", hf=hf.yarn("extrapolation_factor"), default=0.0
    )
    rope_yarn_attn_factor: float = key(
        "rope.scaling.yarn_attn_factor",
        hf=(hf.yarn("attention_factor"), hf.yarn("attn_factor")),
        default=0.0,
    )
    rope_beta_fast: float = key(
        "rope.scaling.yarn_beta_fast", hf=hf.yarn("beta_fast"), default=32.0
    )
    rope_beta_slow: float = key("rope.scaling.yarn_beta_slow", hf=hf.yarn("beta_slow"), default=1.0)
    n_expert: int = key(
        "expert_count", hf=("num_local_experts", "num_experts", "n_routed_experts"), default=0
    )
    n_expert_used: int = key("expert_used_count", hf="num_experts_per_tok", default=0)
    pooling_type: int = key("pooling_type", hf="pooling_type", default=0)

    @classmethod
    def from_metadata(cls, metadata: Metadata, *, arch: str, n_vocab: int, where: str) -> Self:
        """Read a file's keys. ModelError names the file, the key, and what is wrong with its
        value."""
        read = _FileKeys(metadata, arch, where)
        values = cls._fill(read, {"arch": arch, "n_vocab": n_vocab}, read.missing)
        made = cls(**values)
        made.check(where)
        return made

    @classmethod
    def from_config(cls, config: Config, *, arch: str, n_vocab: int, where: str) -> Self:
        """Read a Hugging Face config (a dict as in config.json, with its rotation as hf.with_rope
        puts it)."""

        def read(f: Any, kind: Any, n_layer: int) -> Any:
            value = _asked(config, f)
            return None if value is None else _as(kind, value, where, f)

        def missing(f: Any) -> ModelError:
            return ModelError(f"{where}: no {' or '.join(map(str, f.metadata['hf']))}")

        made = cls(**cls._fill(read, {"arch": arch, "n_vocab": n_vocab}, missing))
        made.check(where)
        return made

    @classmethod
    def said(cls, config: Config, where: str) -> dict[str, Any]:
        """{key without the architecture: value} of what a Hugging Face config gives itself."""
        kinds = typing.get_type_hints(cls)
        asked = {f: _asked(config, f) for f in fields(cls) if f.metadata["key"] != SKIP}
        return {
            f.metadata["key"]: _as(kinds[f.name], value, where, f)
            for f, value in asked.items()
            if value is not None
        }

    @classmethod
    def of(cls, *, arch: str, n_vocab: int, **given: Any) -> Self:
        """Some fields as given, the rest by default."""

        def missing(f: Any) -> ModelError:
            return ModelError(f"{arch}: {f.name} is missing")

        values = cls._fill(
            lambda f, kind, n_layer: given.get(f.name), {"arch": arch, "n_vocab": n_vocab}, missing
        )
        made = cls(**values)
        made.check(arch)
        return made

    @classmethod
    def _fill(
        cls, read: Callable[..., Any], values: dict[str, Any], missing: Any
    ) -> dict[str, Any]:
        kinds = typing.get_type_hints(cls)
        for f in fields(cls):
            if f.metadata["key"] == SKIP:
                continue
            value = read(f, kinds[f.name], values.get("n_layer", 0))
            if value is None:
                default = f.metadata["default"]
                if default is REQUIRED:
                    raise missing(f)
                value = default(SimpleNamespace(**values)) if callable(default) else default
            values[f.name] = value
        return values

    def to_metadata(self) -> dict[str, Any]:
        """{full key: value} of every field that differs from its default, for a writer."""
        found: dict[str, Any] = {}
        for f in fields(self):
            if f.metadata["key"] == SKIP:
                continue
            value, default = getattr(self, f.name), f.metadata["default"]
            if callable(default):
                default = default(self)
            if default is REQUIRED or value != default:
                plain = list(value) if isinstance(value, tuple) else value
                found[_full(self.arch, f)] = plain
        return found

    def check(self, where: str) -> None:
        """ModelError if sizes cannot be meant: zero, too large, or not dividing each other."""
        for name in (
            "n_embd",
            "n_layer",
            "n_head",
            "n_head_kv",
            "n_embd_head",
            "n_embd_head_v",
            "n_vocab",
        ):
            if not 0 < getattr(self, name) < 2**31:
                raise self._wrong(where, name, "must be positive and below 2^31")
        if self.n_head % self.n_head_kv:
            raise self._wrong(where, "n_head_kv", f"does not divide the {self.n_head} heads")
        if self.n_embd_head == self.n_embd // self.n_head and self.n_embd % self.n_head:
            raise self._wrong(where, "n_embd", f"is no multiple of the {self.n_head} heads")
        if self.n_rot > self.n_embd_head or self.n_rot % 2:
            raise self._wrong(where, "n_rot", f"must be even and at most {self.n_embd_head}")
        if self.n_expert and not 0 < self.n_expert_used <= self.n_expert:
            raise self._wrong(where, "n_expert_used", f"must be 1 to {self.n_expert}")
        if self.rope_scaling not in ("none", "linear", "yarn", "longrope"):
            raise self._wrong(where, "rope_scaling", "is not none, linear, yarn or longrope")

    def _wrong(self, where: str, name: str, why: str) -> ModelError:
        f = next(f for f in fields(self) if f.name == name)
        shown = name if f.metadata["key"] == SKIP else _full(self.arch, f)
        return ModelError(f"{where}: {shown} is {getattr(self, name)!r}, which {why}")

    @property
    def freq_scale(self) -> float:
        """What positions are multiplied by: 1 / the scaling factor."""
        factor = self.rope_factor or self.rope_scale_linear
        return 1.0 if self.rope_scaling == "none" or not factor else 1.0 / factor

    def rope(self, mode: str, **changes: Any) -> Rope:
        """The rotation of this model's heads. mode: "norm" (neighbours) or "neox" (halves)."""
        facts: dict[str, Any] = {
            "n_dims": self.n_rot,
            "mode": mode,
            "n_ctx_orig": self.rope_n_ctx_orig,
            "freq_base": self.rope_freq_base,
            "freq_scale": self.freq_scale,
            "ext_factor": (self.rope_yarn_ext_factor or 1.0)
            if self.rope_scaling == "yarn"
            else 0.0,
            "attn_factor": self._attn_factor(),
            "beta_fast": self.rope_beta_fast,
            "beta_slow": self.rope_beta_slow,
        }
        return Rope(**{**facts, **changes})

    def _attn_factor(self) -> float:
        """YaRN's magnitude is a ratio of two mscales; the one that the op applies by itself is
        taken out again."""
        if self.rope_scaling != "yarn":
            return self.rope_attn_factor
        factor = 1.0 / self.freq_scale
        mscale = self.rope_yarn_attn_factor or mscale_of(factor, 1.0)
        if self.rope_yarn_log_mul:
            mscale /= mscale_of(factor, self.rope_yarn_log_mul)
        return mscale / (1.0 + 0.1 * log(factor)) * self.rope_attn_factor


@dataclass(frozen=True, kw_only=True)
class Encoder(Params):
    """What encoders need to know besides: nothing is causal, tokens may be of several sentences."""

    causal: bool = key("attention.causal", hf=lambda c: False, default=False)
    n_token_types: int = key("tokenizer.ggml.token_type_count", hf="type_vocab_size", default=1)


def _full(arch: str, f: Any) -> str:
    """A field's whole key; those of the tokenizer have no architecture in front."""
    name: str = f.metadata["key"]
    return name if name.startswith("tokenizer.") else keys.of(arch, name)


def mscale_of(factor: float, multiplier: float) -> float:
    """YaRN's growth of attention with the context's growth."""
    return 1.0 if factor <= 1.0 else 0.1 * multiplier * log(factor) + 1.0


class _FileKeys:
    """Reads one field's value from a file's metadata, checking its type."""

    def __init__(self, metadata: Metadata, arch: str, where: str) -> None:
        self.metadata, self.arch, self.where = metadata, arch, where

    def __call__(self, f: Any, kind: Any, n_layer: int) -> Any:
        name = _full(self.arch, f)
        if name not in self.metadata:
            return None
        got, element = self.metadata.type(name)
        if got is ValueType.ARRAY:
            return self._array(name, kind, element, n_layer)
        per_layer = typing.get_origin(kind) is tuple
        wanted = _SCALARS[typing.get_args(kind)[0] if per_layer else kind]
        if got is not wanted:
            raise ModelError(f"{self.where}: key {name} has type {got.short}, not {wanted.short}")
        value = self.metadata[name]
        if isinstance(value, float) and not isfinite(value):
            raise ModelError(f"{self.where}: key {name} is {value}")
        return (value,) * n_layer if per_layer else value

    def _array(self, name: str, kind: Any, element: ValueType | None, n_layer: int) -> Any:
        per_layer = typing.get_origin(kind) is tuple
        single = typing.get_args(kind)[0] if per_layer else kind
        fits = element in _INTEGERS if single is int else element is _SCALARS[single]
        if not fits:
            short = element.short if element is not None else "?"
            wanted = _SCALARS[single].short
            raise ModelError(f"{self.where}: key {name} has {short} elements, not {wanted}")
        if self.metadata.count(name) != n_layer:
            got = self.metadata.count(name)
            raise ModelError(f"{self.where}: key {name} has {got} elements for {n_layer} layers")
        values = tuple(self.metadata.array(name).tolist())
        if per_layer:
            return values
        if len(set(values)) != 1:
            raise ModelError(
                f"{self.where}: key {name} differs by layer",
                hint=f"not supported for architecture {self.arch}",
            )
        return values[0]

    def missing(self, f: Any) -> ModelError:
        return ModelError(f"{self.where}: key {keys.of(self.arch, f.metadata['key'])} is missing")


def _asked(config: Config, f: Any) -> Any:
    """What a config says for a field; None if nothing."""
    found = (_from_config(config, name) for name in f.metadata["hf"])
    return next((value for value in found if value is not None), None)


def _as(kind: Any, value: Any, where: str, f: Any) -> Any:
    """A value of a config as its field has it. ModelError if it is of another kind."""
    several = typing.get_origin(kind) is tuple
    single = typing.get_args(kind)[0] if several else kind
    values = value if several and isinstance(value, (list, tuple)) else [value]
    right: Any = {int: int, float: (int, float), bool: bool, str: str}[single]
    for one in values:
        if not isinstance(one, right) or (isinstance(one, bool) and single is not bool):
            shown = f.metadata["key"]
            raise ModelError(f"{where}: {shown} is {str(value)[:80]}, not {single.__name__}")
    made = tuple(single(one) for one in values)
    return made if several else made[0]


def _from_config(config: Config, name: HfName) -> Any:
    if not isinstance(name, str):
        return name(config)
    value: Any = config
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
