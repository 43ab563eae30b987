"""bert: BERT, RoBERTa, XLM-RoBERTa, CamemBERT and DistilBERT. Encoders: every token sees all, norms
come after each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed_encoder
from llamapy.nn.ffn import plain_ffn
from llamapy.nn.norm import layer_norm
from llamapy.nn.params import key
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF: tuple[str, ...] = ("BertModel", "BertForMaskedLM", "DistilBertModel", "DistilBertForMaskedLM")
HF += ("CamembertModel", "RobertaModel", "XLMRobertaModel")
BLOCK: dict[str, tuple[str, str]] = {  # BERT's name, DistilBERT's
    "attn_q": ("attention.self.query", "attention.q_lin"),
    "attn_k": ("attention.self.key", "attention.k_lin"),
    "attn_v": ("attention.self.value", "attention.v_lin"),
    "attn_output": ("attention.output.dense", "attention.out_lin"),
    "attn_output_norm": ("attention.output.LayerNorm", "sa_layer_norm"),
    "ffn_up": ("intermediate.dense", "ffn.lin1"),
    "ffn_down": ("output.dense", "ffn.lin2"),
    "layer_output_norm": ("output.LayerNorm", "output_layer_norm"),
}
NAMES: dict[str, hf.Source] = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "position_embd": hf.rows(
        "embeddings.position_embeddings", lambda w, p: w[len(w) - p.n_ctx_train :]
    ),
}
NAMES |= {
    f"blk.{{i}}.{name}": (f"encoder.layer.{{i}}.{bert}", f"transformer.layer.{{i}}.{distilled}")
    for name, (bert, distilled) in BLOCK.items()
}
KEYS = (*(k for k in hf.STANDARD_KEYS if k != "attention.causal"), *hf.ENCODER_KEYS)
VOCAB = hf.Vocabulary(("wordpiece", "unigram", "bpe"), after=hf.token_types)
DROPPED = (r"pooler\.", r"^cls\.", r"^vocab_", r"^lm_head")
BIASED = (*BLOCK, "token_embd_norm")
_SHIFTED = ("Roberta", "Camembert", "XLMRoberta")  # positions begin after the padding's


def adjust(config: hf.Config) -> dict[str, Any]:
    """The context's length without positions that no token has."""
    name = str(config.get("architectures", [""])[0])
    pad = config.get("pad_token_id")
    if name.startswith(_SHIFTED) and pad is not None and "max_position_embeddings" in config:
        return {**config, "max_position_embeddings": config["max_position_embeddings"] - pad - 1}
    return dict(config)


@dataclass(frozen=True, kw_only=True)
class Params(params.Encoder):
    """DistilBERT has names of its own."""

    n_embd: int = key("embedding_length", hf=("hidden_size", "dim"))
    n_layer: int = key("block_count", hf=("num_hidden_layers", "n_layers"))
    n_ff: int = key("feed_forward_length", hf=("intermediate_size", "hidden_dim"))
    n_head: int = key("attention.head_count", hf=("num_attention_heads", "n_heads"))
    norm_eps: float = key(
        "attention.layer_norm_epsilon",
        hf=("layer_norm_eps", lambda c: 1e-12 if "dim" in c else None),
        default=0.0,
    )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    x = embed_encoder(g, w, p, positions=True)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, x, blk, p)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = layer_norm(g, g.add(y, x), blk, "attn_output_norm", p)
        y = plain_ffn(g, x, blk, p.n_ff, act="gelu_erf")
        x = layer_norm(g, g.add(y, x), blk, "layer_output_norm", p)
        g.tap(f"blk.{i}.out", x)
    return g.tap("result_norm", x)
