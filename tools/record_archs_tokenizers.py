"""The small tokenizers of fixtures/archs: byte-level BPE of three kinds, sentencepiece, WordPiece,
Unigram."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

TEXT = """The capital of France is Paris. The sky is blue because the air scatters the short waves
of the light more than the long ones. A model of a language is a machine that says which word may
follow the words that were said. She said that the rain in the mountains would stop before the
morning, and the river would be still again."""

# Regex of Llama 3's pre-tokenizer, as its tokenizer.json has it.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PRE = {"bpe": "gpt-2", "bpe-llama3": "llama-bpe", "spm": "default", "wordpiece": "default"}
PRE |= {"bpe-roberta": "gpt-2", "unigram": "default"}
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% endfor %}"


def make_tokenizers(folder: Path, *, keep: bool) -> None:
    """Write a folder for each, and sizes.json. Some come out otherwise each time: `keep` leaves
    those that are there."""
    known = folder / "sizes.json"
    sizes: dict[str, int] = json.loads(known.read_text()) if keep and known.is_file() else {}
    makers: dict[str, Callable[[Path], int]] = {
        "bpe": partial(_bpe, llama3=False),
        "bpe-llama3": partial(_bpe, llama3=True),
        "spm": _spm,
        "wordpiece": _wordpiece,
        "bpe-roberta": _roberta,
        "unigram": _unigram,
    }
    for name, make in makers.items():
        if name not in sizes:
            shutil.rmtree(folder / name, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
            sizes[name] = make(folder / name)
    known.write_text(json.dumps(sizes) + "\n")


def _write(folder: Path, config: dict[str, Any]) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _bpe(folder: Path, *, llama3: bool) -> int:
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE(ignore_merges=llama3))
    if llama3:
        split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, plain])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ends = ["<|begin|>" if llama3 else "<|endoftext|>", "<|end|>", "<|pad|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=268,
        special_tokens=ends,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if llama3:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A",
            pair="<|begin|> $A <|begin|>:1 $B:1",
            special_tokens=[("<|begin|>", 0)],
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "bos_token": ends[0],
        "eos_token": ends[1],
        "pad_token": ends[2],
        "clean_up_tokenization_spaces": True,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    _write(folder, config | ({"chat_template": TEMPLATE} if llama3 else {}))
    return tokenizer.get_vocab_size() + 3


def _spm(folder: Path) -> int:
    import sentencepiece

    folder.mkdir()
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary) / "text.txt"
        source.write_text(TEXT)
        sentencepiece.SentencePieceTrainer.train(
            input=str(source),
            model_prefix=str(Path(temporary) / "spm"),
            model_type="bpe",
            vocab_size=330,
            byte_fallback=True,
            pad_id=0,
            eos_id=1,
            bos_id=2,
            unk_id=3,
            user_defined_symbols=["<start_of_turn>"],
            minloglevel=2,
        )
        shutil.copy(Path(temporary) / "spm.model", folder / "tokenizer.model")
    special = {"0": "<pad>", "1": "</s>", "2": "<s>", "3": "<unk>"}
    decoder = {i: {"content": t, "special": True} for i, t in special.items()}
    decoder["330"] = {"content": "<|extra|>", "special": False}
    decoder["331"] = {"content": "\u2581\u2581", "special": False}
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": decoder,
        "chat_template": TEMPLATE,
        "tokenizer_class": "LlamaTokenizer",
    }
    _write(folder, config)
    return 336


def _wordpiece(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = WordPieceTrainer(vocab_size=120, special_tokens=ends, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]")],
    )
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    names = ("pad", "unk", "cls", "sep", "mask")
    config: dict[str, Any] = {f"{name}_token": text for name, text in zip(names, ends)}
    _write(folder, config | {"do_lower_case": True, "tokenizer_class": "BertTokenizer"})
    return tokenizer.get_vocab_size() + 2


ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]  # with their ids


def _roberta(folder: Path) -> int:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=270,
        special_tokens=ROBERTA,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return _save_roberta(tokenizer, folder, "RobertaTokenizer")


def _unigram(folder: Path) -> int:
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Precompiled(_charsmap())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=ROBERTA, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    return _save_roberta(tokenizer, folder, "XLMRobertaTokenizer")


def _charsmap() -> bytes:
    """A compiled map of two characters to their plain forms, as sentencepiece makes it."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    with tempfile.TemporaryDirectory() as temporary:
        source, rules = Path(temporary) / "text.txt", Path(temporary) / "rules.tsv"
        source.write_text(TEXT)
        rules.write_text("FB01\t66 69\nFB02\t66 6C\n")
        sentencepiece.SentencePieceTrainer.train(
            input=str(source),
            model_prefix=str(Path(temporary) / "spm"),
            vocab_size=60,
            normalization_rule_tsv=str(rules),
            minloglevel=2,
        )
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString((Path(temporary) / "spm.model").read_bytes())
    return bytes(model.normalizer_spec.precompiled_charsmap)


def _save_roberta(tokenizer: Any, folder: Path, kind: str) -> int:
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>"}
    config |= {"sep_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    _write(folder, config | {"mask_token": "<mask>", "tokenizer_class": kind})
    return int(tokenizer.get_vocab_size()) + 2
