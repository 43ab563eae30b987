"""Where Hugging Face checkpoints have a model's tensors, and what is done to them on the way into
GGUF.

An architecture's NAMES maps GGUF names without ".weight" or ".bias" ("blk.{i}.attn_q") to where
they come from: a name without that ending ("model.layers.{i}.self_attn.q_proj"), or a Fold that
also computes. {i} is the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from llamapy.core.errors import ModelError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fold:
    """sources  names without the ending; {e} in one of them stands for every expert, in order
    make      (arrays in the order of sources, params) -> the GGUF tensor as a numpy array (shape
              ne[::-1])
    moves     it only moves values, whatever they are: then bits may stand for numbers
    """

    sources: tuple[str, ...]
    make: Callable[[list[Array], Any], Array]
    moves: bool = False


Way = str | Fold
Source = Way | tuple[Way, ...]  # of several ways the first whose tensors are all there counts
Names = Mapping[str, Source]


def decoder(
    layers: Mapping[str, Source],
    *,
    prefix: str = "model.",
    blocks: str = "layers",
    embeddings: str = "embed_tokens",
    norm: Source = "norm",
    head: str = "lm_head",
) -> dict[str, Source]:
    """Names of the usual decoder: embeddings, final norm and head (by default those of Llama), and
    `layers` for the blocks, whose names and sources are given without "blk.{i}." and
    "model.layers.{i}."."""

    def inside(source: Source, where: str) -> Source:
        if isinstance(source, tuple):
            return tuple(one_way(way, where) for way in source)
        return one_way(source, where)

    def one_way(way: Way, where: str) -> Way:
        if isinstance(way, str):
            return where + way
        return replace(way, sources=tuple(where + s for s in way.sources))

    names: dict[str, Source] = {
        "token_embd": prefix + embeddings,
        "output_norm": inside(norm, prefix),
        "output": head,
    }
    where = f"{prefix}{blocks}.{{i}}."
    return names | {f"blk.{{i}}.{name}": inside(way, where) for name, way in layers.items()}


# Blocks as Llama names them; an architecture changes or adds what is different.
LLAMA_BLOCK: dict[str, Source] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def pairs(source: str, heads: str) -> Fold:
    """Rows of each head reordered so that pairs that turn together are neighbours (rope mode
    "norm"): Hugging Face has halves. heads: the Params field with the number of heads."""

    def make(arrays: list[Array], p: Any) -> Array:
        (w,) = arrays
        n = getattr(p, heads)
        halves = w.reshape(n, 2, w.shape[0] // n // 2, *w.shape[1:])
        return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(w.shape)

    return Fold((source,), make, moves=True)


def transposed(source: str) -> Fold:
    """A matrix whose rows are inputs."""
    return rows(source, lambda w, p: w.T)


def plus_one(source: str) -> Fold:
    """A norm's weight that the checkpoint holds as its difference from 1."""
    return Fold((source,), lambda arrays, p: arrays[0] + arrays[0].dtype.type(1))


def experts(source: str) -> Fold:
    """The matrices of all experts ({e} in the name), stacked."""
    return Fold((source,), lambda arrays, p: np.stack(arrays), moves=True)


def gate_of(source: str) -> Fold:
    """The gate's half of a tensor [..., gate and up, n_in]."""
    return rows(source, lambda w, p: w[..., : w.shape[-2] // 2, :])


def up_of(source: str) -> Fold:
    """The other half."""
    return rows(source, lambda w, p: w[..., w.shape[-2] // 2 :, :])


def rows(source: str, part: Callable[[Array, Any], Array]) -> Fold:
    """Some of a tensor's values, moved: what `part` makes of (tensor, params)."""
    return Fold((source,), lambda arrays, p: np.ascontiguousarray(part(arrays[0], p)), moves=True)


# Experts by number, or as transformers keeps them in memory.
QWEN_EXPERTS: dict[str, Source] = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_down_exps": (experts("mlp.experts.{e}.down_proj"), "mlp.experts.down_proj"),
    "ffn_gate_exps": (experts("mlp.experts.{e}.gate_proj"), gate_of("mlp.experts.gate_up_proj")),
    "ffn_up_exps": (experts("mlp.experts.{e}.up_proj"), up_of("mlp.experts.gate_up_proj")),
}


# -- metadata

# Keys that convert_hf_to_gguf.py writes for most architectures, in its order; an architecture that
# is unlike has KEYS of its own. A key is written if the configuration gives it a value.
STANDARD_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.causal",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.yarn_ext_factor",
    "rope.scaling.yarn_attn_factor",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "rope.freq_base",
    "rope.freq_base_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.layer_norm_epsilon",
    "expert_count",
    "expert_used_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_gating_func",
    "attention.key_length",
    "attention.value_length",
    "general.file_type",
)

ENCODER_KEYS = ("attention.causal", "pooling_type")

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Vocabulary:
    """Which vocabulary an architecture takes from a folder, and what metadata goes with it.

    kinds   tried in this order: "spm" (tokenizer.model), "spm_json" (byte fallback in
            tokenizer.json), "bpe", "wordpiece", "unigram"
    before  (config, tokenizer_config) -> metadata before the tokens
    after   (config, tokenizer_config) -> metadata after them, over what is there
    as_declared  added tokens are control tokens only if they say so, and those of tokenizer.json
                 count beside a tokenizer.model
    """

    kinds: tuple[str, ...] = ("bpe", "spm", "spm_json")
    as_declared: bool = False
    before: Callable[[Config, Config], Mapping[str, Any]] = lambda config, tokenizer: {}
    after: Callable[[Config, Config], Mapping[str, Any]] = lambda config, tokenizer: {}


def head_dim(config: Config) -> int | None:
    """Values a head: as given, or as its class works it out."""
    given = config.get("head_dim")
    if given is not None:
        return int(given)
    n_embd = _first(config, "hidden_size", "n_embd")
    n_head = _first(config, "num_attention_heads", "n_head")
    return n_embd // n_head if n_embd and n_head else None


def prefix_space(config: Config, tokenizer: Config) -> dict[str, Any]:
    """Whether a text gets a space in front, if tokenizer_config.json says so."""
    given = tokenizer.get("add_prefix_space")
    return {} if given is None else {"tokenizer.ggml.add_space_prefix": bool(given)}


def no_prefix_space(config: Config, tokenizer: Config) -> dict[str, Any]:
    """A text gets no space in front."""
    return {"tokenizer.ggml.add_space_prefix": False}


def token_types(config: Config, tokenizer: Config) -> dict[str, Any]:
    """How many kinds of sentences there are."""
    return {"tokenizer.ggml.token_type_count": config.get("type_vocab_size", 1)}


def odd_sizes(config: Config, tokenizer: Config) -> dict[str, Any]:
    """What llama.cpp knows of two Llama vocabularies by their size alone: the end of CodeLlama's
    infill, and that a text of Granite's gets no BOS."""
    if config.get("vocab_size") == 32016:
        return {"tokenizer.ggml.eot_token_id": 32010}
    return {"tokenizer.ggml.add_bos_token": False} if config.get("vocab_size") == 49152 else {}


def require(config: Config, holds: object, what: str) -> dict[str, Any]:
    """`config` if a condition of an architecture holds. ModelError says which does not."""
    if not holds:
        kind = config.get("architectures", ["this model"])[0]
        raise ModelError(f"{kind} is only supported where {what}")
    return dict(config)


# -- rotations


def with_rope(config: Config) -> dict[str, Any]:
    """`config` with its rotation in one spelling under "rope": theta, theta_swa, scaling (GGUF's
    name), kind (Hugging Face's), factor, n_ctx_orig, and what else is there. ModelError for a kind
    that is not known.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"config.json: rope_scaling is {given!r}, not an object")
    inner = given.get("full_attention")
    rope: dict[str, Any] = dict(inner if isinstance(inner, Mapping) else given)
    near = given.get("sliding_attention")
    if isinstance(near, Mapping):
        rope["theta_swa"] = near.get("rope_theta")
    else:
        rope["theta_swa"] = _first(config, "rope_local_base_freq", "local_rope_theta")
    theta = _first(config, "global_rope_theta", "rope_theta", "rotary_emb_base")
    rope["theta"] = rope.get("rope_theta", theta)
    fraction = _first(config, "partial_rotary_factor", "rotary_pct", "rope_pct")
    rope.setdefault("partial_rotary_factor", fraction)
    rope["kind"] = kind = str(rope.get("rope_type") or rope.get("type") or "default").lower()
    scaling = _SCALINGS.get(kind)
    if scaling is None:
        known = ", ".join(_SCALINGS)
        raise ModelError(f"config.json: rope scaling {kind!r} is not known", hint=f"known: {known}")
    if scaling in ("linear", "yarn") and rope.get("factor") is None:
        scaling = ""
    rope["scaling"] = scaling or None
    name = "original_max_position_embeddings"
    rope["n_ctx_orig"] = _first(rope, name) or _first(config, name)
    if scaling == "yarn" and rope["n_ctx_orig"] is None:
        rope["n_ctx_orig"] = config.get("max_position_embeddings")
    return {**config, "rope": rope}


_SCALINGS = {
    "default": "",
    "linear": "linear",
    "yarn": "yarn",
    "su": "longrope",
    "longrope": "longrope",
    "dynamic": "",  # changes nothing up to the length that was trained for
    "llama3": "",  # frequency factors in a tensor
}


def yarn(name: str) -> Callable[[Config], Any]:
    """A value of a YaRN rotation; None with another."""

    def of(config: Config) -> Any:
        rope = config.get("rope") or {}
        return rope.get(name) if rope.get("scaling") == "yarn" else None

    return of


def scaled(name: str) -> Callable[[Config], Any]:
    """A value that linear and YaRN scaling have; None with others."""

    def of(config: Config) -> Any:
        rope = config.get("rope") or {}
        return rope.get(name) if rope.get("scaling") in ("linear", "yarn") else None

    return of


def _first(config: Config, *names: str) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def llama3_factors(p: Any, config: Config) -> dict[str, Array]:
    """Llama 3's `rope_freqs.weight`: what each frequency is divided by so that slow ones stretch.

    Meaning: transformers (modeling_rope_utils.py, _compute_llama3_parameters).
    """
    rope = config.get("rope") or {}
    if rope.get("kind") != "llama3":
        return {}
    factor, low = rope.get("factor", 8.0), rope.get("low_freq_factor", 1.0)
    high, original = rope.get("high_freq_factor", 4.0), rope.get("n_ctx_orig") or 8192
    exponent = np.arange(0, p.n_rot, 2, dtype=np.float32) / np.float32(p.n_rot)
    frequency = np.float32(1) / np.float32(p.rope_freq_base) ** exponent
    wavelength = np.float32(2 * np.pi) / frequency
    smooth = (np.float32(original) / wavelength - np.float32(low)) / np.float32(high - low)
    between = 1 / ((1 - smooth) / np.float32(factor) + smooth)
    factors = np.where(wavelength > original / low, np.float32(factor), between)
    return {"rope_freqs.weight": np.where(wavelength < original / high, 1, factors)}
