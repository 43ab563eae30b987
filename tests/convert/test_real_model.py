"""SmolLM2, taken apart into a Hugging Face folder and converted: the same numbers, the same words.

The folder is made from the GGUF file, with what llama.cpp's converter does
to a Llama undone here a second time. tools/compare_folder.py does it with transformers itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize

from llamapy.gguf.reader import GGUFFile
from llamapy.gguf.split import SplitFile, open_split
from llamapy.quants import codec
from llamapy.runtime.model import Model
from llamapy.tasks import convert
from llamapy.tasks.perplexity import perplexity
from llamapy.tasks.quantize import quantize_file
from tests.convert import folders

# A public text that every Python has, and that no model finds easy or hopeless.
TEXT = Path(json.__file__).read_text()[:3000]
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def opened(path: Path) -> SplitFile | GGUFFile:
    return open_split(path, type_sizes=codec.type_sizes)


def values(file: SplitFile | GGUFFile) -> Iterator[tuple[str, np.ndarray]]:
    """All tensors as the official package dequantizes them."""
    for one in file.tensors:
        raw = np.frombuffer(file.raw(one.name), np.uint8).reshape(one.ne[:0:-1] + (-1,))
        yield one.name, dequantize(raw, GGMLQuantizationType(one.type_id)).reshape(one.ne[::-1])


def hf_name(name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if layer:
        return f"model.layers.{layer[1]}.{NAMES[layer[2]]}.weight"
    return OUTER[name.removesuffix(".weight")] + ".weight"


def in_halves(rows: np.ndarray, n_head: int) -> np.ndarray:
    """Rows of pairs, as GGUF has them, to the two halves of each head, as transformers has them."""
    made = np.empty_like(rows)
    size = len(rows) // n_head
    for head in range(n_head):
        for i in range(size):
            made[head * size + i % 2 * (size // 2) + i // 2] = rows[head * size + i]
    return made


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(array).hexdigest()


def write_folder(source: Path, folder: Path) -> dict[str, str]:
    """Everything that transformers would save of the model; hashes of the tensors in GGUF's order
    of rows."""
    file = opened(source)
    known = file.metadata
    heads = {"q": known["llama.attention.head_count"], "k": known["llama.attention.head_count_kv"]}
    folder.mkdir()
    tensors, hashes = {}, {}
    for name, array in values(file):
        hashes[name] = digest(array)
        permuted = re.search(r"attn_([qk])\.weight", name)
        tensors[hf_name(name)] = in_halves(array, heads[permuted[1]]) if permuted else array
    folders.write_safetensors(folder / "model.safetensors", tensors)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": known["llama.embedding_length"],
        "intermediate_size": known["llama.feed_forward_length"],
        "num_hidden_layers": known["llama.block_count"],
        "num_attention_heads": heads["q"],
        "num_key_value_heads": heads["k"],
        "max_position_embeddings": known["llama.context_length"],
        "rms_norm_eps": known["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": known["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "vocab_size": known["llama.vocab_size"],
    }
    tokens = known["tokenizer.ggml.tokens"]
    special = [i for i, kind in enumerate(known["tokenizer.ggml.token_type"]) if kind == 3]
    tokenizer = {
        "added_tokens": [{"id": i, "content": tokens[i], "special": True} for i in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
            ],
        },
        "post_processor": None,
        "model": {
            "type": "BPE",
            "vocab": {text: i for i, text in enumerate(tokens)},
            "merges": [pair.split(" ") for pair in known["tokenizer.ggml.merges"]],
        },
    }
    about = {
        f"{short}_token": tokens[known[f"tokenizer.ggml.{long}_token_id"]]
        for short, long in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    about["chat_template"] = known["tokenizer.chat_template"]
    for name, made in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", about),
    ):
        (folder / name).write_text(json.dumps(made))
    return hashes


SAME = ("context_length", "embedding_length", "block_count", "feed_forward_length", "vocab_size")
SAME += ("attention.head_count", "attention.head_count_kv", "rope.dimension_count")
SAME += ("attention.layer_norm_rms_epsilon", "rope.freq_base")
WORDS = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
WORDS += ("unknown_token_id", "padding_token_id")


@pytest.mark.model
def test_smollm2_comes_back(smollm2: Path, tmp_path: Path) -> None:
    hashes = write_folder(smollm2, tmp_path / "SmolLM2-135M")
    out = tmp_path / "out.gguf"
    job = convert.prepare(
        tmp_path / "SmolLM2-135M", convert.Options(outtype="f32", output=out, threads=2)
    )
    convert.run(job)
    old, new = opened(smollm2), opened(out)
    keys = [f"llama.{key}" for key in SAME] + [f"tokenizer.ggml.{key}" for key in WORDS]
    for key in [*keys, "general.architecture", "tokenizer.chat_template"]:
        assert np.array_equal(new.metadata[key], old.metadata[key]), key
    assert {name: digest(array) for name, array in values(new)} == hashes
    assert len(hashes) == 272
    quantize_file(smollm2, tmp_path / "plain.gguf", "f32", allow_requantize=True)
    a, b = (
        perplexity(Model(tmp_path / name), TEXT, n_ctx=128, chunks=2, threads=2)
        for name in ("plain.gguf", "out.gguf")
    )
    assert a.n_tokens == b.n_tokens > 100
    assert a.ppl == b.ppl
    assert 2 < a.ppl < 60  # of a model whose rows are out of order it is in the thousands
