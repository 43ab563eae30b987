"""The tiny models of fixtures/archs: one or more for each architecture, made with transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}
MOE: dict[str, Any] = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}


@dataclass(frozen=True)
class Case:
    """kind, sizes  transformers' prefix of the classes ("Llama"), fields of the configuration
    model   another class than KindForCausalLM
    flags   "short": compute fewer tokens too; "gpt2": matrices lie on their side; "no upstream";
            "no pooler": its class has none that could be left out; "alibi": see with_alibi
    """

    kind: str
    sizes: dict[str, Any]
    tokenizer: str = "bpe"
    dtype: str = "bf16"
    model: str = ""
    encoder: bool = False
    norm_is_offset: bool = False
    flags: tuple[str, ...] = ()
    rewrite: Callable[[Path, Any], None] | None = None

    def make(self, n_vocab: int) -> Any:
        """The model with a configuration for so many tokens."""
        import transformers

        config = getattr(transformers, f"{self.kind}Config")(vocab_size=n_vocab, **self.sizes)
        made = getattr(transformers, self.model or f"{self.kind}ForCausalLM")
        headless = self.encoder and "no pooler" not in self.flags
        return made(config, **({"add_pooling_layer": False} if headless else {}))

    def save(self, model: Any, folder: Path, dtype: Any) -> None:
        """As transformers saves it, in 16 bits; then what the case changes."""
        state = {name: values.to(dtype) for name, values in model.state_dict().items()}
        if getattr(model.config, "tie_word_embeddings", False):
            state.pop("lm_head.weight", None)  # it is the embeddings
        model.save_pretrained(folder, state_dict=state)
        if self.rewrite:
            self.rewrite(folder, model)


def rope(kind: str, theta: float = 10000.0, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def set_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, **changes}, indent=1) + "\n")


def as_baichuan(folder: Path, model: Any) -> None:
    """Baichuan-7B is a Llama whose three matrices are one; its own class is remote code."""
    import torch
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    state = load_file(path)
    for i in range(model.config.num_hidden_layers):
        where = f"model.layers.{i}.self_attn."
        parts = [state.pop(f"{where}{n}_proj.weight") for n in "qkv"]
        state[f"{where}W_pack.weight"] = torch.cat(parts)
    save_file(state, path)
    set_config(folder, architectures=["BaichuanForCausalLM"], model_type="baichuan")


def with_alibi(model: Any, n_tokens: int) -> dict[str, Any]:
    """Arguments that make a Llama of Baichuan-13B: no rotation, a bias by distance in each head.

    Slopes: ALiBi's rule (Press and others, 2021), for numbers of heads that are no power of two
    too; Baichuan's own class is remote code.
    """
    import torch

    def turned(x: Any, position_ids: Any = None, **_: Any) -> tuple[Any, Any]:
        one = torch.ones(1, x.shape[1], model.config.head_dim)
        return one, torch.zeros_like(one)

    model.model.rotary_emb.forward = turned
    n_head = model.config.num_attention_heads
    power = 1 << (n_head.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    slopes += [2.0 ** (-4.0 * (2 * i + 1) / power) for i in range(n_head - power)]
    near = torch.arange(n_tokens)[None, :] - torch.arange(n_tokens)[:, None]  # at most 0 if seen
    seen = torch.where(near > 0, float("-inf"), near.float())
    bias = torch.tensor(slopes)[:, None, None] * near.clamp(max=0).float()
    return {"attention_mask": torch.where(seen == float("-inf"), float("-inf"), bias)[None]}


def with_pooling(folder: Path, model: Any) -> None:
    """What sentence-transformers adds to a folder."""
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}\n')
    modules = [{"path": "", "type": "x.Transformer"}, {"path": "1_Pooling", "type": "x.Pooling"}]
    (folder / "modules.json").write_text(json.dumps(modules) + "\n")


def as_nomic(folder: Path, model: Any) -> None:
    """The names of the model's own configuration, which is what checkpoints have."""
    c = model.config
    config = {
        "architectures": ["NomicBertModel"],
        "model_type": "nomic_bert",
        "activation_function": "swiglu",
        "causal": False,
        "layer_norm_epsilon": c.layer_norm_eps,
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "n_embd": c.hidden_size,
        "n_head": c.num_attention_heads,
        "n_inner": c.intermediate_size,
        "n_layer": c.num_hidden_layers,
        "n_positions": 2048,
        "prenorm": False,
        "qkv_proj_bias": False,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "type_vocab_size": c.type_vocab_size,
        "vocab_size": c.vocab_size,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def with_n_ctx(folder: Path, model: Any) -> None:
    """Files of GPT-2 have the length under this name, too; upstream asks for it."""
    set_config(folder, n_ctx=model.config.n_positions)


def with_scoring(folder: Path, model: Any) -> None:
    """Files of DeepSeek V3 say this; transformers does not keep it."""
    set_config(folder, scoring_func="sigmoid")


LLAMA3 = rope(
    "llama3",
    5e5,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=32,
)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=32)
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "attn_implementation": "eager"}
GEMMA = BASE | {"head_dim": 16}
GEMMA3 = GEMMA | {"num_hidden_layers": 7, "sliding_window": 16, "query_pre_attn_scalar": 16}
GEMMA3 |= {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
}
PHI3 = BASE | {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
FACTORS = {"long_factor": [1.0, 1.5, 3.0, 4.0], "short_factor": [1.0, 1.0, 1.1, 1.2]}
LONGROPE = rope("longrope", **FACTORS, original_max_position_embeddings=32)
LONGROPE["original_max_position_embeddings"] = 32
MLA: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
}
BERT = {k: v for k, v in BASE.items() if k != "num_key_value_heads"}
ROBERTA = BERT | {"max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1}
ROBERTA |= {"bos_token_id": 0, "eos_token_id": 2, "layer_norm_eps": 1e-5}
# 40 layers are what tells the 13B model from the 7B one.
ALIBI = BASE | {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 40}
ALIBI |= {"num_attention_heads": 3, "num_key_value_heads": 3}

CASES: dict[str, Case] = {
    "llama": Case("Llama", BASE | LLAMA3, "bpe-llama3"),
    "llama-linear": Case(
        "Llama",
        BASE | rope("linear", factor=2.0) | {"tie_word_embeddings": True, "attention_bias": True},
        "bpe-llama3",
        dtype="f16",
    ),
    "llama-yarn": Case("Llama", BASE | YARN, "spm"),
    "llama-dynamic": Case("Llama", BASE | rope("dynamic", factor=2.0), "spm"),
    "mistral": Case("Mistral", BASE | {"head_dim": 16, "sliding_window": None}, "spm"),
    "mixtral": Case(
        "Mixtral", BASE | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8}, "spm"
    ),
    "qwen2": Case("Qwen2", BASE | {"tie_word_embeddings": True}, dtype="f16"),
    "qwen2-yarn": Case("Qwen2", BASE | YARN),
    "qwen3": Case("Qwen3", BASE | {"head_dim": 16}),
    "qwen2moe": Case("Qwen2Moe", BASE | MOE | {"shared_expert_intermediate_size": 64}),
    "qwen3moe": Case("Qwen3Moe", BASE | MOE | {"head_dim": 16, "norm_topk_prob": True}),
    "gemma": Case("Gemma", GEMMA, "spm", norm_is_offset=True),
    "gemma2": Case(
        "Gemma2",
        GEMMA | {"sliding_window": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 3},
        "spm",
        norm_is_offset=True,
    ),
    "gemma3": Case("Gemma3Text", GEMMA3, "spm", model="Gemma3ForCausalLM", norm_is_offset=True),
    "phi3": Case("Phi3", PHI3 | {"partial_rotary_factor": 0.5}, "spm"),
    "phi3-longrope": Case("Phi3", PHI3 | LONGROPE, "spm", flags=("short",)),
    "smollm3": Case("SmolLM3", BASE | {"num_hidden_layers": 4, "pad_token_id": 2}, "bpe-llama3"),
    "olmo2": Case("Olmo2", BASE),
    "starcoder2": Case("Starcoder2", BASE | {"sliding_window": None}),
    "gpt2": Case(
        "GPT2", GPT2, model="GPT2LMHeadModel", dtype="f16", flags=("gpt2",), rewrite=with_n_ctx
    ),
    "gptneox": Case("GPTNeoX", BERT | {"rotary_pct": 0.5}),
    "gptneox-serial": Case("GPTNeoX", BERT | {"use_parallel_residual": False, "rotary_pct": 1.0}),
    "falcon": Case("Falcon", BERT | {"num_kv_heads": 1}),
    "falcon-40b": Case("Falcon", BERT | {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "baichuan": Case("Llama", BASE | {"num_key_value_heads": 4}, "spm", rewrite=as_baichuan),
    "deepseek2-lite": Case(
        "DeepseekV2",
        BASE | MLA | {"q_lora_rank": None, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    ),
    "deepseek2-v3": Case(
        "DeepseekV3",
        BASE
        | MLA
        | {"q_lora_rank": 24, "n_routed_experts": 8, "n_group": 4, "topk_group": 2}
        | rope(
            "yarn",
            factor=4.0,
            original_max_position_embeddings=32,
            mscale=1.0,
            mscale_all_dim=1.0,
        ),
        rewrite=with_scoring,
    ),
    "baichuan-13b": Case(
        "Llama", ALIBI, "spm", flags=("no upstream", "alibi"), rewrite=as_baichuan
    ),
    "bert": Case("Bert", BERT, "wordpiece", model="BertModel", encoder=True, rewrite=with_pooling),
    "bert-distilled": Case(
        "DistilBert",
        {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128},
        "wordpiece",
        model="DistilBertModel",
        encoder=True,
        flags=("no pooler",),
    ),
    "bert-roberta": Case("Roberta", ROBERTA, "bpe-roberta", model="RobertaModel", encoder=True),
    "bert-xlm-roberta": Case(
        "XLMRoberta", ROBERTA, "unigram", model="XLMRobertaModel", encoder=True
    ),
    "bert-camembert": Case("Camembert", ROBERTA, "unigram", model="CamembertModel", encoder=True),
    "nomic-bert": Case(
        "NomicBert",
        BERT | rope("default", 1000.0),
        "wordpiece",
        model="NomicBertModel",
        encoder=True,
        flags=("no upstream",),  # with transformers 5 it reads sizes that are not the file's
        rewrite=as_nomic,
    ),
}
