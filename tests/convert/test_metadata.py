"""Names and model cards as gguf-py reads them."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest
from gguf.utility import naming_convention, size_label

from llamapy.convert import card, metadata, names
from llamapy.convert.checkpoint import open_folder

IDS = [
    "meta-llama/Llama-2-7b-chat-hf",
    "Mistral/Mixtral-8x7B-Instruct-v0.1",
    "Qwen2.5-0.5B",
    "gpt2",
    "x/y",
    "bigscience/bloom-7b1-petals",
    "SmolLM2-135M-Instruct",
    "stablelm-2-1_6b",
    "google/gemma-2-9b-it",
    "DeepSeek-V3",
    "Phi-3-mini-4k-instruct",
    "Phi-3-mini-128k-instruct",
    "./folder",
    "model-q4_k_m",
    "a--b",
    "Qwen1.5-MoE-A2.7B-Chat",
    "TinyLlama-1.1B-step-50K-105b",
    "v1.0-x",
    "iter2-7B",
    "large-model",
    "x-large",
]


@pytest.mark.parametrize("n_params", [0, 135_000_000, 7_000_000_000])
@pytest.mark.parametrize("model_id", [*IDS, "a normal sentence"])
def test_parts_of_names(model_id: str, n_params: int) -> None:
    got = names.parse(model_id, n_params)
    full, org, base, finetune, version, size = gguf.Metadata.get_model_id_components(
        model_id, n_params
    )
    want = names.NameParts(full, org, base, finetune, version, size)
    assert got == want


@pytest.mark.parametrize("text", [*IDS, "my model-v2", "Already Titled", "a 7b b"])
def test_titles(text: str) -> None:
    assert names.title(text) == gguf.Metadata.id_to_title(text)


@pytest.mark.parametrize("n", [0, 999, 36_000, 134_515_008, 999_999_999, 7_241_732_096, 2**42])
@pytest.mark.parametrize("experts", [0, 8])
def test_size_labels(n: int, experts: int) -> None:
    parts = (n, n // 3, n // 5, experts)
    assert names.size_label(*parts) == size_label(*parts)


def test_file_names() -> None:
    for base in (None, "Base Name/x"):
        for size, kind in ((None, None), ("7B", "Q8_0")):
            given = {"name": "A Name", "basename": base, "finetune": "chat it", "version": "v1"}
            got = names.file_name(**given, size_label=size, output_type=kind)
            assert got == naming_convention(*given.values(), size, kind)


CARD = """---
license: apache-2.0
language:
- en
- no
tags: [text generation, "a, b", 'c']
pipeline_tag: text-generation
base_model:
- org/Base-7B
- https://huggingface.co/other/Thing-13b-v2
datasets:
- my/data
model_name: The Name # a comment
version: v1.5
description: >-
  two lines
  of text
nested:
  key: value
  list:
  - 1
  - 2
base_models_of_dicts:
- name: A
  organization: B
- name: C
---
# Title
"""


def test_card_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    assert card.front_matter(CARD) == gguf.Metadata.load_model_card(tmp_path)
    for text in ("", "no card", "---\n---\n", "---\nx: 1"):
        (tmp_path / "README.md").write_text(text)
        assert (card.front_matter(text) or {}) == (gguf.Metadata.load_model_card(tmp_path) or {})


def test_all_sources(llama: Path) -> None:
    """The whole of it, key by key, as gguf-py's Metadata writes it."""
    (llama / "README.md").write_text(CARD)
    config = '{"temperature": 0.6, "top_k": 40, "top_p": 0.9}'
    (llama / "generation_config.json").write_text(config)
    writer = gguf.GGUFWriter(None, "llama")
    found = gguf.Metadata.load(None, llama, None, 1000)
    found.set_gguf_meta_model(writer)
    want = {key: value.value for key, value in writer.kv_data[0].items()}
    del want["general.architecture"]
    made = metadata.about(open_folder(llama), {"w": (1000,)}).values()
    got = {key: plain for key, plain, _, _ in metadata.typed(made)}
    got.pop("general.size_label")
    assert got == {key: value for key, value in want.items() if key != "general.size_label"}
    assert list(got) == [key for key in want if key in got]
