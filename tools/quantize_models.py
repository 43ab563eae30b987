"""Tiny models for quantization: names, shapes and metadata that the rules of file types depend on.

llama.cpp's quantizer looks at names and a few numbers, not at what a model would need to run, so
rows are as short as a type's block allows and there are two of each. The values are random with a
frozen generator: the files are the same everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter

Floats = npt.NDArray[np.float32]
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Sizes:
    """Metadata of a tiny model, and how long its rows are."""

    arch: str = "llama"
    n_layer: int = 16
    n_head: int = 8
    n_head_kv: int = 8
    n_expert: int = 0
    row: int = 256
    tied: bool = False
    extra: dict[str, int | float | bool] = field(default_factory=dict)

    def metadata(self) -> dict[str, int | float | bool]:
        """Keys without the architecture."""
        found: dict[str, int | float | bool] = {
            "context_length": 64,
            "embedding_length": 256,
            "feed_forward_length": 512,
            "block_count": self.n_layer,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "attention.layer_norm_epsilon": 1e-5,
        }
        if self.n_expert:
            found |= {"expert_count": self.n_expert, "expert_used_count": 2}
        return found | self.extra


def _ends(s: Sizes) -> Shapes:
    ends: Shapes = {"token_embd.weight": (s.row, 3), "output_norm.weight": (s.row,)}
    return ends if s.tied else ends | {"output.weight": (s.row, 3)}


def _dense(s: Sizes) -> Shapes:
    """Attention and a gated feed-forward part."""
    found = _ends(s)
    for i in range(s.n_layer):
        found[f"blk.{i}.attn_norm.weight"] = (s.row,)
        for part in ("q", "k", "v", "output"):
            found[f"blk.{i}.attn_{part}.weight"] = (s.row, 2)
        for part in ("gate", "up", "down"):
            if s.n_expert:
                found[f"blk.{i}.ffn_{part}_exps.weight"] = (s.row, 2, s.n_expert)
            else:
                found[f"blk.{i}.ffn_{part}.weight"] = (s.row, 2)
        if s.n_expert:
            found[f"blk.{i}.ffn_gate_inp.weight"] = (s.row, s.n_expert)
            found[f"blk.{i}.ffn_down_shexp.weight"] = (s.row, 2)
    return found


def _fused(s: Sizes) -> Shapes:
    """Falcon's: one tensor for queries, keys and values; no gate."""
    found = _ends(s)
    for i in range(s.n_layer):
        for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
            found[f"blk.{i}.{part}.weight"] = (s.row, 2)
    return found


def _uneven(s: Sizes) -> Shapes:
    """Rows that 256 does not divide, and some that 32 does not."""
    found = _dense(s)
    rows = {"attn_q": 96, "attn_k": 40, "attn_v": 512, "ffn_down": 1856, "ffn_up": 14}
    for name in found:
        part = name.split(".")[-2]
        if part in rows:
            found[name] = (rows[part], 2)
    return found


def _few(s: Sizes) -> Shapes:
    """Many layers of what counts."""
    found = _ends(s)
    for i in range(s.n_layer):
        found[f"blk.{i}.attn_v.weight"] = (s.row, 2)
    return found


_NAME_LIST = """
per_layer_token_embd.weight position_embd.weight token_types.weight per_layer_model_proj.weight
altup_proj.weight blk.0.laurel_l.weight blk.0.ssm_conv1d.weight blk.0.shortconv.conv.weight
blk.0.indexer.k_proj.weight blk.0.indexer.q_proj.weight blk.0.ffn_gate_inp.weight
blk.0.ffn_gate_tid2eid.weight blk.0.time_mix_first.weight blk.0.time_mix_w0.weight
blk.0.time_mix_w1.weight blk.0.time_mix_w2.weight blk.0.time_mix_v0.weight
blk.0.time_mix_v1.weight blk.0.time_mix_v2.weight blk.0.time_mix_a0.weight
blk.0.time_mix_a1.weight blk.0.time_mix_a2.weight blk.0.time_mix_g1.weight
blk.0.time_mix_g2.weight blk.0.time_mix_decay_w1.weight blk.0.time_mix_decay_w2.weight
blk.0.time_mix_lerp_fused.weight blk.0.time_mix_key.weight blk.0.attn_rel_b.weight
v.position_embd.weight v.patch_embd.weight v.sam.pos_embd.weight v.sam.neck.0.weight
v.sam.net_2.weight v.rel_pos_h.weight v.blk.0.attn_v.weight v.blk.0.ffn_down.weight
v.patch_merger.weight a.rvq.codebook.weight mm.a.code_embd.weight mm.0.weight
blk.0.attn_kv_b.weight blk.0.attn_qkv.weight blk.0.ffn_down.bias blk.0.attn_k_norm.weight
blk.0.ssm_in.weight blk.0.cross_attn_output.weight
"""


def _named(s: Sizes) -> Shapes:
    """A tensor for each name that the rules of "never" know, and some like them."""
    return (
        _few(s) | dict.fromkeys(_NAME_LIST.split(), (s.row, 2)) | {"blk.1.lone.weight": (s.row, 1)}
    )


MODELS: dict[str, tuple[Callable[[Sizes], Shapes], Sizes]] = {
    "llama": (_dense, Sizes()),
    "llama-gqa4": (_dense, Sizes(n_head_kv=2, n_layer=12, tied=True)),
    "llama-8-experts": (_dense, Sizes(n_expert=8, n_layer=10)),
    "llama-4-experts": (_dense, Sizes(n_expert=4, n_layer=9, tied=True)),
    "falcon": (_fused, Sizes("falcon", n_layer=32, n_head_kv=1)),
    "gemma3": (_dense, Sizes("gemma3", n_layer=18, n_head=4, n_head_kv=1, tied=True)),
    "uneven": (_uneven, Sizes(n_layer=8, row=96)),
    "70b": (_few, Sizes(n_layer=80, n_head_kv=4)),
    "65b": (_few, Sizes(n_layer=80)),
    "names": (_named, Sizes(n_layer=2)),
}


_TYPES = {"f32": (0, 4), "f16": (1, 2), "bf16": (30, 2)}  # ggml's number, bytes a value


def values(name: str, ne: tuple[int, ...]) -> Floats:
    """Random weights of a tensor, float32 [ne[::-1]]; the same on every machine."""
    rng = np.random.RandomState(zlib.crc32(name.encode()))
    return (rng.standard_normal(ne[::-1]) * 0.05).astype(np.float32)


def importances(name: str) -> dict[str, Floats]:
    """Importances of the columns of every matrix, as a mean of squares would be."""
    make, sizes = MODELS[name]
    found = {}
    for tensor, ne in make(sizes).items():
        rng = np.random.RandomState(zlib.crc32(tensor.encode()) ^ 1)
        shape = (ne[2] if len(ne) > 2 else 1, ne[0])
        found[tensor] = (rng.standard_normal(shape) ** 2 + 0.01).astype(np.float32)
    return found


def write(name: str, path: Path, *, kind: str = "f32", order: int = 0) -> None:
    """Write a model; `kind` of matrices is f32, f16 or bf16; `order` 0 is by layer, others not."""
    make, sizes = MODELS[name]
    writer = GGUFWriter(path)
    writer.add("general.architecture", sizes.arch)
    writer.add("general.name", name)
    for key, value in sizes.metadata().items():
        writer.add(f"{sizes.arch}.{key}", value)
    writer.add("tokenizer.ggml.tokens", ["<a>", "b", "c"], ValueType.ARRAY)
    shapes = list(make(sizes).items())
    if order:
        np.random.RandomState(order).shuffle(shapes)  # type: ignore[arg-type]
    for tensor, ne in shapes:
        type_id, n_bytes = _TYPES[kind if len(ne) > 1 else "f32"]
        writer.add_tensor(tensor, ne, type_id, int(np.prod(ne)) * n_bytes)
    writer.write(_data(shapes, kind))


def _data(shapes: list[tuple[str, tuple[int, ...]]], kind: str) -> Iterator[bytes]:
    for tensor, ne in shapes:
        array = values(tensor, ne)
        if kind == "f16" and len(ne) > 1:
            yield array.astype("<f2").tobytes()
        elif kind == "bf16" and len(ne) > 1:
            yield (array.view("<u4") >> 16).astype("<u2").tobytes()  # cut off, not rounded
        else:
            yield array.tobytes()
