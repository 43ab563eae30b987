"""nomic-bert: an encoder with rotary positions and gated networks, without biases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed_encoder
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.norm import layer_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF = ("NomicBertModel",)
NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.{i}.attn_qkv": "encoder.layers.{i}.attn.Wqkv",
    "blk.{i}.attn_output": "encoder.layers.{i}.attn.out_proj",
    "blk.{i}.attn_output_norm": "encoder.layers.{i}.norm1",
    "blk.{i}.ffn_up": "encoder.layers.{i}.mlp.fc11",
    "blk.{i}.ffn_gate": "encoder.layers.{i}.mlp.fc12",
    "blk.{i}.ffn_down": "encoder.layers.{i}.mlp.fc2",
    "blk.{i}.layer_output_norm": "encoder.layers.{i}.norm2",
}
KEYS = (*(k for k in hf.STANDARD_KEYS if k != "attention.causal"), *hf.ENCODER_KEYS)
VOCAB = hf.Vocabulary(("wordpiece",))
DROPPED = (r"pooler\.", r"^cls\.")
BIASED = ("token_embd_norm", "attn_output_norm", "layer_output_norm")
FIXED = {
    "activation_function": "swiglu",
    "prenorm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
}
TRAINED = {8192: 2048, 2048: 512}  # positions that there are: positions that were trained


def adjust(config: hf.Config) -> dict[str, Any]:
    """Refuse what the graph does not have; the context is what was trained."""
    for name, value in FIXED.items():
        hf.require(config, config.get(name, value) == value, f"{name} is {value}")
    hf.require(config, not config.get("moe_every_n_layers"), "no layer has experts")
    n = config.get("n_positions")
    known = n in TRAINED and config.get("max_trained_positions", 2048) == 2048
    return {**config, "n_positions": TRAINED[n] if known else n}  # type: ignore[index]


@dataclass(frozen=True, kw_only=True)
class Params(params.Encoder):
    """The size of heads is always said."""

    n_embd_head: int = key("attention.key_length", hf=hf.head_dim, default=params.per_head)
    n_embd_head_v: int = key("attention.value_length", hf=hf.head_dim, default=params.per_head)


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = p.rope("neox")
    x = embed_encoder(g, w, p, positions=False)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, x, blk, p, rope=rope, fused=True)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = layer_norm(g, g.add(y, x), blk, "attn_output_norm", p)
        y = gated_ffn(g, x, blk, p.n_ff)
        x = layer_norm(g, g.add(y, x), blk, "layer_output_norm", p)
        g.tap(f"blk.{i}.out", x)
    return g.tap("result_norm", x)
