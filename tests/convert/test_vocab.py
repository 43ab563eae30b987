"""Vocabularies from every kind of file, and which pre-tokenizer a tokenizer.json has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llamapy.convert import pre, pre_hashes, sentencepiece, vocab
from llamapy.convert.checkpoint import open_folder
from llamapy.core.errors import FileFormatError, TokenizerError
from llamapy.nn import hf
from llamapy.tokenizers import tokenizer
from tests.convert import folders

TEXT = "The capital of France is Paris, she said.\n  42 rivers"
SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"

# Pre-tokenizers as the models' own tokenizer.json files have them.
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
PLAIN = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


def sequence(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(nodes)}


DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^"""
    "\r\n"
    r"\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+["
    "\r\n"
    r"]*|\s*["
    "\r\n"
    r"]+|\s+(?!\S)|\s+"
)
KNOWN = {
    "gpt-2": BYTES,
    "starcoder": sequence(DIGITS, BYTES),
    "llama-bpe": sequence(split(rf"{SHORT}|{WORD}|\p{{N}}{{1,3}}|{TAIL}"), PLAIN),
    "qwen2": sequence(split(rf"{SHORT}|{WORD}|\p{{N}}|{TAIL}"), PLAIN),
    "deepseek-v3": sequence(
        split(r"\p{N}{1,3}"), split("[一-龥\u3040-ゟ゠-ヿ]+"), split(DEEPSEEK3), PLAIN
    ),
}


def no_ids(name: str) -> list[int]:
    return []


@pytest.mark.parametrize("name", KNOWN)
def test_patterns_are_known(name: str) -> None:
    """The rule set found is that of the name (several names may have the same rules)."""
    flags = {"ignore_merges": name == "llama-bpe"}
    config = {"clean_up_tokenization_spaces": name in ("gpt-2", "starcoder")}
    given = {"pre_tokenizer": KNOWN[name], "model": flags}
    found = pre.identify(given, config, no_ids, "x")
    assert pre.pretok_rules.BY_NAME[found] is pre.pretok_rules.BY_NAME[name]


def test_unknown_patterns_are_shown() -> None:
    given = {"pre_tokenizer": split("[a-z]{7}"), "normalizer": {"type": "NFC"}}
    with pytest.raises(TokenizerError) as caught:
        pre.identify(given, {}, no_ids, "folder")
    assert "[a-z]{7}" in str(caught.value) and "NFC" in str(caught.value)
    assert "--pre" in str(caught.value)


def test_a_fingerprint_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are those of a known tokenizer name it, also where patterns say nothing."""
    monkeypatch.setattr(
        pre_hashes, "name_of", lambda ids: "falcon3" if ids == [1] else "smollm" if ids else None
    )
    given = {"pre_tokenizer": KNOWN["llama-bpe"], "model": {"ignore_merges": True}}
    assert pre.identify(given, {}, lambda name: [1], "x") == "falcon3"
    assert pre.identify({"pre_tokenizer": split("[q]")}, {}, lambda name: [2], "x") == "smollm"


def test_fingerprints_are_of_known_names() -> None:
    """All but three, which belong to vocabularies that have no pre-tokenizer."""
    unknown = set(pre_hashes.KNOWN.values()) - set(pre.pretok_rules.BY_NAME)
    assert unknown == {"bert-bge", "bert-bge-large", "jina-v2-en", "chatglm-spm"} & unknown
    assert len(pre_hashes.KNOWN) == 96


def test_forced_name(llama: Path) -> None:
    made = vocab.read(open_folder(llama), hf.Vocabulary(), 272, "qwen2")
    assert made["tokenizer.ggml.pre"] == "qwen2"
    with pytest.raises(TokenizerError, match="no pre-tokenizer"):
        vocab.read(open_folder(llama), hf.Vocabulary(), 272, "qwen-2")


def test_one_more_token_changes_nothing(llama: Path) -> None:
    path = llama / "tokenizer.json"
    found = json.loads(path.read_text())
    entry = {"id": 270, "content": "<mine>", "special": True, "normalized": False}
    found["added_tokens"].append({**found["added_tokens"][0], **entry})
    path.write_text(json.dumps(found))
    made = vocab.read(open_folder(llama), hf.Vocabulary(), 272)
    assert made["tokenizer.ggml.pre"] == "llama-bpe"
    assert made["tokenizer.ggml.tokens"][270] == b"<mine>"
    assert made["tokenizer.ggml.token_type"][270:] == [3, 5]


def test_round_trip(llama: Path) -> None:
    made = tokenizer.load(vocab.read(open_folder(llama), hf.Vocabulary(), 272))
    ids = made.encode(TEXT)
    assert ids[0] == 0 and made.decode(ids[1:]) == TEXT.encode()
    assert made.eos == 1 and made.pad == 2


def test_spm_without_its_model(spm_llama: Path, tmp_path: Path) -> None:
    """A tokenizer.json in the stead of tokenizer.model tokenizes alike: merges give the order."""
    policy = hf.Vocabulary(("spm", "spm_json"))
    whole = tokenizer.load(vocab.read(open_folder(spm_llama), policy, 336))
    pieces = sentencepiece.read(spm_llama / "tokenizer.model").pieces
    (spm_llama / "tokenizer.model").unlink()
    (spm_llama / "tokenizer.json").write_text(json.dumps(as_json(pieces)))
    made = vocab.read(open_folder(spm_llama), policy, 336)
    assert made["tokenizer.ggml.model"] == "llama"
    other = tokenizer.load(made)
    for text in (
        "The capital of France is Paris, she said.",
        "she said that",
        "é☃ ok",
        "the mountains would stop",
    ):
        assert other.encode(text, add_special=False) == whole.encode(text, add_special=False)


def as_json(pieces: list[tuple[bytes, float, int]]) -> dict[str, Any]:
    """A sentencepiece BPE model as transformers writes it: merges by the score of their result."""
    texts = [text.decode() for text, _, _ in pieces]
    score = {text.decode(): s for text, s, _ in pieces}
    normal = [t for t, (_, _, kind) in zip(texts, pieces) if kind == 1]
    merges = [
        (t[:i], t[i:])
        for t in sorted(normal, key=lambda t: -score[t])
        for i in range(1, len(t))
        if t[:i] in score and t[i:] in score
    ]
    special = [t for t, (_, _, kind) in zip(texts, pieces) if kind in (2, 3, 4)]
    model = {"type": "BPE", "byte_fallback": True, "unk_token": "<unk>"}
    return {
        "model": model | {"vocab": {t: i for i, t in enumerate(texts)}, "merges": merges},
        "normalizer": {"type": "Prepend", "prepend": "\u2581"},
        "added_tokens": [
            {"id": texts.index(t), "content": t, "special": t != "<start_of_turn>"} for t in special
        ],
    }


def test_unigram(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 8, "type_vocab_size": 1}')
    pieces = [["<s>", 0.0], ["<pad>", 0.0], ["</s>", 0.0], ["<unk>", 0.0]]
    pieces += [["\u2581the", -1.5], ["\u2581", -2.0], ["x", -3.0]]
    special = [{"id": i, "content": pieces[i][0], "special": True} for i in range(3)]
    found = {
        "model": {"type": "Unigram", "vocab": pieces, "unk_id": 3},
        "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
        "added_tokens": special,
    }
    (folder / "tokenizer.json").write_text(json.dumps(found))
    made = vocab.read(open_folder(folder, with_tensors=False), hf.Vocabulary(("unigram",)), 8)
    assert made["tokenizer.ggml.model"] == "t5"
    assert made["tokenizer.ggml.token_type"] == [3, 3, 3, 2, 1, 1, 1, 5]
    assert made["tokenizer.ggml.precompiled_charsmap"] == b"\0\0\0"
    assert made["tokenizer.ggml.add_space_prefix"] is True


def test_gpt2_files_of_old(tmp_path: Path) -> None:
    """vocab.json and merges.txt say the same as the tokenizer.json made of them."""
    folder = folders.assemble("gpt2", tmp_path)
    want = vocab.read(open_folder(folder), hf.Vocabulary(), 272)
    model = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["model"]["vocab"]))
    merges = [" ".join(pair) for pair in model["model"]["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    made = vocab.read(open_folder(folder), hf.Vocabulary(), 272)
    for key in ("tokenizer.ggml.merges", "tokenizer.ggml.pre"):
        assert made[key] == want[key]
    assert made["tokenizer.ggml.tokens"][3:260] == want["tokenizer.ggml.tokens"][3:260]


def test_no_vocabulary(llama: Path) -> None:
    (llama / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match=r"no tokenizer\.json"):
        vocab.read(open_folder(llama), hf.Vocabulary(), 272)


def test_vocabulary_of_another_model(llama: Path) -> None:
    with pytest.raises(TokenizerError, match="270 rows|100 rows"):
        vocab.read(open_folder(llama), hf.Vocabulary(), 100)


@pytest.mark.parametrize("raw", [b"", b"\x0a\xff", b"not a model at all", b"\x0a\x02\x08\x01" * 3])
def test_what_is_no_sentencepiece_model(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(raw)
    with pytest.raises(FileFormatError, match="no sentencepiece model"):
        sentencepiece.read(path)


def test_templates(llama: Path) -> None:
    """In a file of its own, and several by name."""
    config = json.loads((llama / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (llama / "tokenizer_config.json").write_text(json.dumps(config))
    (llama / "chat_template.jinja").write_text("{{ one }}")
    made = vocab.read(open_folder(llama), hf.Vocabulary(), 272)
    assert made["tokenizer.chat_template"] == "{{ one }}"
    config["chat_template"] = [
        {"name": "default", "template": "{{ a }}"},
        {"name": "tool use", "template": "{{ b }}"},
    ]
    (llama / "tokenizer_config.json").write_text(json.dumps(config))
    made = vocab.read(open_folder(llama), hf.Vocabulary(), 272)
    assert made["tokenizer.chat_template"] == "{{ a }}"
    assert made["tokenizer.chat_template.tool_use"] == "{{ b }}"
