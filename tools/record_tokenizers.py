"""Record llama.cpp's ids for small vocabularies: the truth for tests/tokenizers.

    python tools/record_tokenizers.py [FOLDER]        # default: fixtures/tokenizers

Writes one vocabulary of each kind (`spm.gguf`, `bpe.gguf`, ...: a few hundred tokens drawn from
random text, no model), and `ids.json`: {vocabulary: [[text as hex, add_special, parse_special,
ids], ...]} from the peer (tools/peer.py). `pre.json` has the ids of the vocabulary `bpe.gguf` or
`raw.gguf` for every rule set of pretok_rules.py that this peer knows: {name: [[text, ids], ...]}.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
from peer import Model, connect
from peer_fetch import PeerError
from token_texts import texts

from llamapy.tokenizers.pieces import byte_chars
from llamapy.tokenizers.pretok_rules import RULE_SETS

FOLDER = Path(__file__).parent.parent / "fixtures" / "tokenizers"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
SAMPLE = 600  # texts that tokens are drawn from
SPECIALS = [b"<s>", b"</s>", b"<unk>", b"<tool>", b"<|im_end|>", b"[CLS]"]
Token = tuple[bytes, int, float]


def parts_of(sample: Iterable[bytes], n: int, draw: random.Random) -> list[bytes]:
    """The `n` commonest short character sequences of a sample, in random order."""
    counts: Counter[str] = Counter()
    for text in sample:
        chars = text.decode("utf-8", "ignore")
        counts.update(chars[i : i + k] for k in range(1, 7) for i in range(len(chars) - k + 1))
    chosen = [part.encode() for part, _ in counts.most_common(n)]
    draw.shuffle(chosen)
    return chosen


def merges_of(sample: Iterable[list[bytes]], n: int) -> list[bytes]:
    """Byte-pair merges learned without any splitting, so that they cross all borders."""
    words, merges = [list(symbols) for symbols in sample], []
    for _ in range(n):
        pairs = Counter(pair for word in words for pair in zip(word, word[1:]))
        (left, right), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        merges.append(left + b" " + right)
        words = [_merged(word, left, right) for word in words]
    return merges


def _merged(word: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    out: list[bytes] = []
    for symbol in word:
        if out and out[-1] == left and symbol == right:
            out[-1] += right
        else:
            out.append(symbol)
    return out


def write(
    path: Path,
    model: str,
    tokens: Sequence[Token],
    extra: Mapping[str, Any],
    merges: Sequence[bytes] = (),
    arch: str = "llama",
) -> None:
    """A GGUF file with a vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(64)
    writer.add_time_mix_extra_dim(32)
    writer.add_time_decay_extra_dim(64)
    writer.add_rescale_every_n_layers(0)
    writer.add_token_shift_count(2)
    writer.add_tokenizer_model(model)
    writer.add_token_list([text for text, _, _ in tokens])
    writer.add_token_types([kind for _, kind, _ in tokens])
    writer.add_token_scores([float(score) for _, _, score in tokens])
    if merges:
        writer.add_token_merges(list(merges))
    for key, value in extra.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def unique(tokens: Iterable[Token]) -> list[Token]:
    """The first of equal texts."""
    found: dict[bytes, Token] = {}
    for token in tokens:
        found.setdefault(token[0], token)
    return list(found.values())


HEAD: list[Token] = [(b"<unk>", UNKNOWN, 0), (b"<s>", CONTROL, 0), (b"</s>", CONTROL, 0)]
TOOL: list[Token] = [(b"<tool>", USER, 0), (b"<|im_end|>", CONTROL, 0)]
BYTES: list[Token] = [(b"<0x%02X>" % byte, BYTE, 0) for byte in range(256)]


def make_vocabularies(folder: Path) -> None:
    """Write a vocabulary of each kind."""
    draw = random.Random(7)
    sample = texts(1, SAMPLE)
    parts = parts_of(sample, 900, draw)
    spaced = [part.replace(b" ", "▁".encode()) for part in parts]
    scored = [(part, NORMAL, -draw.choice([1, 2.5, 4, 7.25, 11.5])) for part in spaced]
    write(folder / "spm.gguf", "llama", unique([*HEAD, *BYTES, *TOOL, *scored]), {})
    plain = [(part, NORMAL, -draw.uniform(1, 12)) for part in parts]
    plamo = [*HEAD, (b"<pad>", CONTROL, 0.0), *BYTES, *TOOL, *plain]
    write(folder / "plamo2.gguf", "plamo2", unique(plamo), {"add_bos_token": False})
    unigram = [(b"<pad>", CONTROL, 0.0), (b"</s>", CONTROL, 0.0), (b"<unk>", UNKNOWN, 0.0)]
    ugm = unique([*unigram, *TOOL, *scored])
    flags = {"add_space_prefix": True, "remove_extra_whitespaces": True}
    write(folder / "ugm.gguf", "t5", ugm, flags)
    ids = {"bos_token_id": 1, "seperator_token_id": 2, "unknown_token_id": 0}
    words = [(text.lower(), NORMAL, 0.0) for text, _, _ in scored]
    write(folder / "wpm.gguf", "bert", unique([*HEAD, *TOOL, *words]), ids)
    escaped = [(_escaped(part), NORMAL, 0.0) for part in [bytes([b]) for b in range(256)] + parts]
    rwkv = unique([(b"<s>", CONTROL, 0.0), *escaped])
    write(folder / "rwkv.gguf", "rwkv", rwkv, {}, arch="rwkv6")
    _make_bpe(folder / "bpe.gguf", sample, encoded=True)
    _make_bpe(folder / "raw.gguf", sample, encoded=False)


def _escaped(text: bytes) -> bytes:
    named = {9: b"\\t", 10: b"\\n", 13: b"\\r", 92: b"\\\\"}
    return b"".join(named.get(b, b"%c" % b if 32 <= b < 127 else b"\\x%02x" % b) for b in text)


def _make_bpe(path: Path, sample: list[bytes], *, encoded: bool) -> None:
    if encoded:
        chars = [char.encode() for char in byte_chars()]
        words = [[chars[byte] for byte in text] for text in sample]
        first = [(char, NORMAL, 0.0) for char in chars]
    else:
        plain = [text.decode("utf-8", "ignore").replace(" ", "▁") for text in sample]
        words = [[char.encode() for char in text] for text in plain]
        first = [*BYTES, *((char, NORMAL, 0.0) for char in sorted({c for w in words for c in w}))]
    merges = merges_of(words, 700)
    joined = [(merge.replace(b" ", b"", 1), NORMAL, 0.0) for merge in merges]
    tokens = unique([*HEAD, *TOOL, *first, *joined])
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    pre = {"pre": "gpt-2" if encoded else "gemma4"}
    write(path, "gpt2", tokens, ids | pre, merges)


def record_ids(folder: Path) -> dict[str, list[list[Any]]]:
    """The peer's ids for each vocabulary."""
    found = {}
    for number, path in enumerate(sorted(folder.glob("*.gguf"))):
        draw = random.Random(number)
        with connect().open(path, vocab_only=True) as model:
            rows = []
            for text in texts(100 + number, 250, SPECIALS):
                flags = draw.random() < 0.5, draw.random() < 0.5
                ids = _tokenize(model, text, *flags)
                rows.append([text.hex(), *flags, ids])
            found[path.stem] = rows
    return found


def _tokenize(model: Model, text: bytes, add_special: bool, parse_special: bool) -> list[int]:
    return model.tokenize(text, add_special=add_special, parse_special=parse_special)


def record_pre(folder: Path) -> dict[str, list[list[Any]]]:
    """The peer's ids for each rule set that it knows."""
    found = {}
    for number, rules in enumerate(RULE_SETS):
        name = rules.names.split()[0]
        source = folder / ("bpe.gguf" if rules.byte_encode else "raw.gguf")
        with tempfile.TemporaryDirectory() as scratch:
            changed = Path(scratch) / "vocabulary.gguf"
            model = "whitespace" if name == "whitespace" else "gpt2"
            _with_pre(source, changed, name, model)
            try:
                with connect().open(changed, vocab_only=True) as opened:
                    made = texts(500 + number, 60)
                    found[name] = [[t.hex(), _tokenize(opened, t, False, False)] for t in made]
            except PeerError as reason:
                print(f"{name}: {reason}")
    return found


def _with_pre(source: Path, target: Path, pre: str, model: str) -> None:
    """A copy of a vocabulary with another tokenizer.ggml.pre and model."""
    from llamapy.gguf.reader import GGUFFile

    with GGUFFile(source) as file:
        data = file.metadata
        prefix = "tokenizer.ggml."
        rows = zip(
            data.raw_strings(prefix + "tokens"),
            data.array(prefix + "token_type").tolist(),
            data.array(prefix + "scores").tolist(),
        )
        extra = {"bos_token_id": 1, "eos_token_id": 2, "pre": pre}
        write(target, model, list(rows), extra, data.raw_strings(prefix + "merges"))


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    make_vocabularies(folder)
    for name, content in (("ids", record_ids(folder)), ("pre", record_pre(folder))):
        lines = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(rows)}" for key, rows in content.items()
        )
        (folder / f"{name}.json").write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    manifest = [
        'made_by = "tools/record_tokenizers.py"',
        'peer = "@node-llama-cpp/linux-x64 (npm), llama.cpp v0.4.0"',
        'made_from = "random text of tools/token_texts.py"',
    ]
    for path in sorted(folder.glob("*.[gj]*")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        manifest += [
            "",
            f'["{path.name}"]',
            f"bytes = {path.stat().st_size}",
            f'sha256 = "{digest}"',
        ]
    (folder / "MANIFEST.toml").write_text("\n".join(manifest) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
