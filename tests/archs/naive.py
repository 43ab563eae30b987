"""Llama, Qwen 2 and Gemma 3 straight from their papers and Hugging Face's code, in float64 numpy.

Independent of llamapy: files are read and dequantized by the `gguf` package. Nothing here is meant
to be fast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

Array = np.ndarray[Any, Any]


class File:
    """w["blk.0.attn_q.weight"]: float64 [out, in]; m["block_count"]: value of the architecture's
    key."""

    def __init__(self, path: Path) -> None:
        reader = GGUFReader(path)
        self.arch = reader.fields["general.architecture"].contents()
        self.m = {
            name.removeprefix(f"{self.arch}."): field.contents()
            for name, field in reader.fields.items()
            if name.startswith(f"{self.arch}.")
        }
        self.w: dict[str, Array] = {}
        for tensor in reader.tensors:
            values = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            self.w[tensor.name] = values.reshape([int(n) for n in tensor.shape[::-1]])

    def __getitem__(self, name: str) -> Array:
        return self.w[f"{name}.weight"]

    def linear(self, x: Array, name: str) -> Array:
        y = x @ self[name].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    @property
    def head(self) -> Array:
        return self.w.get("output.weight", self.w["token_embd.weight"])


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x: Array) -> Array:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def rope(x: Array, base: float, factors: Array | None = None) -> Array:
    """x [heads, n, d], token t at position t, turned as Hugging Face does: halves."""
    d = x.shape[-1]
    inverse = base ** (-np.arange(0, d, 2) / d)
    if factors is not None:
        inverse = inverse / factors
    angle = np.arange(x.shape[1])[:, None] * inverse
    cos, sin = np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)
    turned = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], -1)
    return x * cos + turned * sin


def heads_of(y: Array, n: int) -> Array:
    """[tokens, n * d] -> [n, tokens, d]."""
    return y.reshape(len(y), n, -1).swapaxes(0, 1)


def unpaired(w: Array, n: int) -> Array:
    """Rows of GGUF's Llama back in Hugging Face's order: each head's even rows, then its odd
    ones."""
    return w.reshape(n, -1, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def attend(q: Array, k: Array, v: Array, window: int = 0) -> Array:
    """Causal attention of [heads, n, d] over [heads_kv, n, d]: [n, heads * d]."""
    groups = len(q) // len(k)
    k, v = np.repeat(k, groups, 0), np.repeat(v, groups, 0)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    i, j = np.indices(scores.shape[1:])
    seen = j <= i
    if window:
        seen &= i - j < window
    out = softmax(np.where(seen, scores, -np.inf)) @ v
    return out.swapaxes(0, 1).reshape(out.shape[1], -1)


def ffn(f: File, x: Array, block: str, act: Callable[[Array], Array] = silu) -> Array:
    gated = act(f.linear(x, f"{block}.ffn_gate")) * f.linear(x, f"{block}.ffn_up")
    return f.linear(gated, f"{block}.ffn_down")


def mixtral(f: File, x: Array, block: str) -> Array:
    """Softmax over all experts, the best ones, weights made to sum to one."""
    chances = softmax(f.linear(x, f"{block}.ffn_gate_inp"))
    out = np.zeros_like(x)
    for t, chance in enumerate(chances):
        best = np.argsort(-chance)[: f.m["expert_used_count"]]
        for e in best:
            gate, up, down = (f[f"{block}.ffn_{n}_exps"][e] for n in ("gate", "up", "down"))
            out[t] += chance[e] / chance[best].sum() * (down @ (silu(gate @ x[t]) * (up @ x[t])))
    return out


def llama(f: File, ids: Sequence[int]) -> Array:
    n_head, n_kv = f.m["attention.head_count"], f.m["attention.head_count_kv"]
    eps, base = f.m["attention.layer_norm_rms_epsilon"], f.m.get("rope.freq_base", 10000.0)
    factors = f.w.get("rope_freqs.weight")
    for block in (f"blk.{i}" for i in range(f.m["block_count"])):
        for name, n in (("attn_q", n_head), ("attn_k", n_kv)):
            f.w[f"{block}.{name}.weight"] = unpaired(f[f"{block}.{name}"], n)
    x = f["token_embd"][list(ids)]
    for block in (f"blk.{i}" for i in range(f.m["block_count"])):
        y = rms_norm(x, f[f"{block}.attn_norm"], eps)
        q = rope(heads_of(f.linear(y, f"{block}.attn_q"), n_head), base, factors)
        k = rope(heads_of(f.linear(y, f"{block}.attn_k"), n_kv), base, factors)
        v = heads_of(f.linear(y, f"{block}.attn_v"), n_kv)
        x = x + f.linear(attend(q, k, v), f"{block}.attn_output")
        y = rms_norm(x, f[f"{block}.ffn_norm"], eps)
        x = x + (mixtral if "expert_count" in f.m else ffn)(f, y, block)
    return rms_norm(x, f["output_norm"], eps) @ f.head.T


def qwen2(f: File, ids: Sequence[int]) -> Array:
    n_head, n_kv = f.m["attention.head_count"], f.m["attention.head_count_kv"]
    eps, base = f.m["attention.layer_norm_rms_epsilon"], f.m["rope.freq_base"]
    x = f["token_embd"][list(ids)]
    for block in (f"blk.{i}" for i in range(f.m["block_count"])):
        y = rms_norm(x, f[f"{block}.attn_norm"], eps)
        q = rope(heads_of(f.linear(y, f"{block}.attn_q"), n_head), base)
        k = rope(heads_of(f.linear(y, f"{block}.attn_k"), n_kv), base)
        v = heads_of(f.linear(y, f"{block}.attn_v"), n_kv)
        x = x + f.linear(attend(q, k, v), f"{block}.attn_output")
        x = x + ffn(f, rms_norm(x, f[f"{block}.ffn_norm"], eps), block)
    return rms_norm(x, f["output_norm"], eps) @ f.head.T


def gemma3(f: File, ids: Sequence[int]) -> Array:
    """Norm weights in the file are already 1 + w."""
    n_head, n_kv = f.m["attention.head_count"], f.m["attention.head_count_kv"]
    eps, window = f.m["attention.layer_norm_rms_epsilon"], f.m["attention.sliding_window"]
    x = f["token_embd"][list(ids)] * np.sqrt(f.m["embedding_length"])
    for i in range(f.m["block_count"]):
        block = f"blk.{i}"
        full = (i + 1) % f.m["attention.sliding_window_pattern"] == 0
        base = f.m["rope.freq_base"] if full else 10000.0
        y = rms_norm(x, f[f"{block}.attn_norm"], eps)
        q = heads_of(f.linear(y, f"{block}.attn_q"), n_head)
        k = heads_of(f.linear(y, f"{block}.attn_k"), n_kv)
        v = heads_of(f.linear(y, f"{block}.attn_v"), n_kv)
        q = rope(rms_norm(q, f[f"{block}.attn_q_norm"], eps), base)
        k = rope(rms_norm(k, f[f"{block}.attn_k_norm"], eps), base)
        y = f.linear(attend(q, k, v, 0 if full else window), f"{block}.attn_output")
        x = x + rms_norm(y, f[f"{block}.post_attention_norm"], eps)
        y = ffn(f, rms_norm(x, f[f"{block}.ffn_norm"], eps), block, gelu_tanh)
        x = x + rms_norm(y, f[f"{block}.post_ffw_norm"], eps)
    return rms_norm(x, f["output_norm"], eps) @ f.head.T


def logits(path: Path, ids: Sequence[int]) -> Array:
    """What the model in the file says of each position: float64 [n, n_vocab]."""
    f = File(path)
    return MODELS[f.arch](f, ids)


MODELS = {"llama": llama, "qwen2": qwen2, "gemma3": gemma3}
