"""Metadata keys that several parts of llamapy use. Keys of one architecture live in its file."""

from __future__ import annotations

from typing import Final

ARCHITECTURE: Final = "general.architecture"
NAME: Final = "general.name"
TYPE: Final = "general.type"
FILE_TYPE: Final = "general.file_type"
QUANTIZATION_VERSION: Final = "general.quantization_version"
ALIGNMENT: Final = "general.alignment"

SPLIT_NO: Final = "split.no"
SPLIT_COUNT: Final = "split.count"
SPLIT_TENSORS: Final = "split.tensors.count"

TOKENS: Final = "tokenizer.ggml.tokens"
SCORES: Final = "tokenizer.ggml.scores"
TOKEN_TYPES: Final = "tokenizer.ggml.token_type"
MERGES: Final = "tokenizer.ggml.merges"
TOKENIZER_MODEL: Final = "tokenizer.ggml.model"
PRE_TOKENIZER: Final = "tokenizer.ggml.pre"
CHAT_TEMPLATE: Final = "tokenizer.chat_template"


def of(architecture: str, suffix: str) -> str:
    """The key of a hyperparameter: of("llama", "block_count") is "llama.block_count"."""
    return f"{architecture}.{suffix}"
