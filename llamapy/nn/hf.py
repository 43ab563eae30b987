"""Where Hugging Face checkpoints have a model's tensors, and what is done to them on the way into
GGUF.

An architecture's NAMES maps GGUF names without ".weight" or ".bias" ("blk.{i}.attn_q") to where
they come from: a name without that ending ("model.layers.{i}.self_attn.q_proj"), or a Fold that
also computes. {i} is the layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fold:
    """sources  names without the ending; {e} in one of them stands for every expert, in order
    make      (arrays in the order of sources, params) -> the GGUF tensor as a numpy array (shape
              ne[::-1])
    """

    sources: tuple[str, ...]
    make: Callable[[list[Array], Any], Array]


Names = Mapping[str, str | Fold]


def decoder(layers: Mapping[str, str | Fold], *, prefix: str = "model.") -> dict[str, str | Fold]:
    """Names of the usual decoder: embeddings, final norm and head as in Llama, and `layers` for the
    blocks, whose names and sources are given without "blk.{i}." and "model.layers.{i}."."""

    def full(source: str | Fold) -> str | Fold:
        if isinstance(source, str):
            return f"{prefix}layers.{{i}}.{source}"
        return Fold(tuple(f"{prefix}layers.{{i}}.{s}" for s in source.sources), source.make)

    names: dict[str, str | Fold] = {
        "token_embd": f"{prefix}embed_tokens",
        "output_norm": f"{prefix}norm",
        "output": "lm_head",
    }
    return names | {f"blk.{{i}}.{name}": full(source) for name, source in layers.items()}


# Blocks as Llama names them; an architecture changes or adds what is different.
LLAMA_BLOCK: dict[str, str | Fold] = {
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

    return Fold((source,), make)


def plus_one(source: str) -> Fold:
    """A norm's weight that the checkpoint holds as its difference from 1."""
    return Fold((source,), lambda arrays, p: arrays[0] + arrays[0].dtype.type(1))


def experts(source: str) -> Fold:
    """The matrices of all experts ({e} in the name), stacked."""
    return Fold((source,), lambda arrays, p: np.stack(arrays))
