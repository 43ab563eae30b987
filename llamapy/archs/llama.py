"""llama: Llama 1 to 3, Mistral, SmolLM2 and, with experts, Mixtral. Neighbours turn together."""

from __future__ import annotations

from dataclasses import dataclass

from llamapy.core.errors import ModelError
from llamapy.graph import Tensor
from llamapy.nn import hf, params
from llamapy.nn.attention import attention
from llamapy.nn.embed import embed
from llamapy.nn.ffn import gated_ffn
from llamapy.nn.head import head
from llamapy.nn.moe import Routing, moe
from llamapy.nn.norm import rms_norm
from llamapy.nn.params import key
from llamapy.nn.rope import with_factors
from llamapy.nn.step import Step
from llamapy.nn.weights import Weights

HF: tuple[str, ...] = (
    "LlamaForCausalLM",
    "LLaMAForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
)
HF += ("LlamaModel",)
NAMES = hf.decoder(
    hf.LLAMA_BLOCK
    | {
        "attn_q": hf.pairs("self_attn.q_proj", "n_head"),
        "attn_k": hf.pairs("self_attn.k_proj", "n_head_kv"),
        "ffn_gate_inp": ("block_sparse_moe.gate", "mlp.gate"),
        "ffn_gate_exps": (
            hf.experts("block_sparse_moe.experts.{e}.w1"),
            hf.gate_of("mlp.experts.gate_up_proj"),
        ),
        "ffn_down_exps": (
            hf.experts("block_sparse_moe.experts.{e}.w2"),
            "mlp.experts.down_proj",
        ),
        "ffn_up_exps": (
            hf.experts("block_sparse_moe.experts.{e}.w3"),
            hf.up_of("mlp.experts.gate_up_proj"),
        ),
    }
)
KEYS = (*hf.STANDARD_KEYS, "vocab_size", "rope.dimension_count")
VOCAB = hf.Vocabulary(("spm", "spm_json", "bpe"), before=hf.prefix_space, after=hf.odd_sizes)
EXTRA = hf.llama3_factors
BIASED = ()  # what has a bias in a model that does not say


@dataclass(frozen=True, kw_only=True)
class Params(params.Params):
    """The common keys; heads are turned whole."""

    n_embd_head: int = key("attention.key_length", hf=hf.head_dim, default=params.per_head)
    n_embd_head_v: int = key("attention.value_length", hf=hf.head_dim, default=params.per_head)
    n_rot: int = key("rope.dimension_count", hf=hf.head_dim, default=lambda p: p.n_embd_head)

    def check(self, where: str) -> None:
        super().check(where)
        if self.n_rot != self.n_embd_head:
            raise ModelError(
                f"{where}: llama turns whole heads ({self.n_embd_head}), not {self.n_rot} values"
            )


def build(g: Step, w: Weights, p: Params) -> Tensor:
    rope = with_factors(g, w, p, p.rope("norm"))
    x = embed(g, w, p)  # [n_embd, n_tokens]
    for i, blk in w.blocks(p.n_layer):
        y = attention(g, rms_norm(g, x, blk, "attn_norm", p), blk, p, rope=rope)
        if i == p.n_layer - 1:
            x, y = g.wanted(x, y)
        x = g.add(y, x)
        y = rms_norm(g, x, blk, "ffn_norm", p)
        if p.n_expert:
            y = moe(g, y, blk, p.n_ff, Routing(p.n_expert, p.n_expert_used, normalize=True))
        else:
            y = gated_ffn(g, y, blk, p.n_ff)
        x = g.tap(f"blk.{i}.out", g.add(y, x))
    return head(g, rms_norm(g, x, w, "output_norm", p), w, p)
