"""Write tiny models with random weights, one or more for each architecture, to fixtures/tiny/.

The architecture files say which tensors there are (a trace); this file only chooses sizes, types
and a small vocabulary that really tokenizes (byte-level BPE trained on the text below, or SPM
pieces from it). The same files come out each time: weights are drawn from a generator seeded by
model and tensor name.

    python tools/make_tiny.py                    write them and the MANIFEST.toml
    python tools/make_tiny.py --check            compare with those that are there (exit code 1 if
    unlike) python tools/make_tiny.py --only llama-moe   just this one
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llamapy.core import discover
from llamapy.gguf.values import ValueType
from llamapy.gguf.writer import GGUFWriter
from llamapy.nn.trace import is_bias, trace
from llamapy.quants import codec

FOLDER = Path(__file__).parents[1] / "fixtures" / "tiny"

TEXT = """The capital of France is Paris. The sky is blue because the air scatters the short waves
of the light more than the long ones. A model of a language is a machine that says which word may
follow the words that were said. She said that the rain in the mountains would stop before the
morning, and the river would be still again."""

CHAT = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """sizes   fields of the architecture's Params
    types   {end of a tensor's name: type}; "" is the type of the other matrices (vectors are f32)
    extra   optional tensors that it has, by the end of their name
    """

    arch: str
    sizes: dict[str, Any]
    types: dict[str, str]
    extra: tuple[str, ...] = ()
    vocabulary: str = "bpe"


BASE = {"n_ctx_train": 512, "n_layer": 2, "n_embd": 48, "n_ff": 64, "n_head": 3, "n_head_kv": 1}
BASE |= {"norm_rms_eps": 1e-5}
WIDE = BASE | {"n_embd": 64, "n_ff": 96, "n_head": 2}  # rows that divide into blocks of 32
MIXED = {"attn_q": "q8_0", "attn_k": "q5_0", "attn_v": "q5_1", "attn_output": "q4_0", "": "q4_1"}
KQUANTS = {"attn_q": "q4_K", "attn_k": "q3_K", "attn_v": "q6_K", "attn_output": "q2_K", "": "q5_K"}

MODELS = {
    "llama": Tiny("llama", BASE, {"": "f32"}, ("output.weight",)),
    "llama-tied": Tiny(
        "llama", WIDE | {"n_layer": 3, "rope_freq_base": 1e5}, MIXED | {"token_embd": "f16"}
    ),
    "llama-k": Tiny(
        "llama",
        BASE | {"n_layer": 1, "n_embd": 256, "n_ff": 256, "n_head": 4, "n_head_kv": 2},
        KQUANTS | {"token_embd": "q4_0"},
        ("rope_freqs.weight",),
    ),
    "llama-moe": Tiny(
        "llama",
        BASE | {"n_ff": 32, "n_expert": 4, "n_expert_used": 2},
        {"": "f16", "gate_inp": "f32"},
    ),
    "qwen2": Tiny("qwen2", BASE | {"rope_freq_base": 1e6}, {"": "f32"}),
    "gemma3": Tiny(
        "gemma3",
        BASE
        | {
            "n_layer": 4,
            "n_embd": 40,
            "n_ff": 48,
            "n_head": 2,
            "n_embd_head": 32,
            "n_embd_head_v": 32,
        }
        | {"n_window": 8, "window_every": 3, "rope_freq_base": 1e6, "norm_rms_eps": 1e-6},
        {"": "f32", "token_embd": "f16"},
        vocabulary="spm",
    ),
}


def write(name: str, path: Path) -> None:
    """Write the tiny model of this name."""
    tiny = MODELS[name]
    module = discover.load("llamapy.archs", tiny.arch.replace("-", "_"))
    vocabulary = VOCABULARIES[tiny.vocabulary]()
    n_vocab = len(vocabulary["tokens"])
    params = module.Params.of(arch=tiny.arch, n_vocab=n_vocab, **tiny.sizes)
    shapes = trace(
        module, params, optional=lambda t: t.endswith(tiny.extra or ("\n",)) or is_bias(module, t)
    ).shapes
    writer = GGUFWriter(path)
    writer.add("general.architecture", tiny.arch)
    writer.add("general.type", "model")
    writer.add("general.name", f"tiny random {name}")
    for key, value in params.to_metadata().items():
        writer.add(key, value)
    for key, value in vocabulary.items():
        kind = ValueType.ARRAY if isinstance(value, list) else None
        template = key == "chat_template"
        writer.add(f"tokenizer.{key}" if template else f"tokenizer.ggml.{key}", value, kind)
    data = []
    for tensor, ne in shapes.items():
        kind = codec.get(_kind(tiny, tensor, ne))
        values = _values(name, tensor, ne)
        data.append(_encode(kind, values))
        writer.add_tensor(tensor, ne, kind.type_id, len(data[-1]))
    writer.write(data)


def _kind(tiny: Tiny, tensor: str, ne: tuple[int, ...]) -> str:
    if len(ne) == 1:
        return "f32"
    stem = tensor.removesuffix(".weight").rpartition(".")[2]
    return next((k for end, k in tiny.types.items() if end and stem.endswith(end)), tiny.types[""])


def _values(name: str, tensor: str, ne: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Random weights of a sensible size, float32 [ne[::-1]]."""
    rng = np.random.default_rng([zlib.crc32(name.encode()), zlib.crc32(tensor.encode())])
    noise = rng.standard_normal(ne[::-1])
    if tensor.endswith("rope_freqs.weight"):
        return np.linspace(1, 8, ne[0]).astype(np.float32)
    if "norm" in tensor and len(ne) == 1:
        return (1 + noise / 4).astype(np.float32)
    if len(ne) == 1:
        return (noise / 4).astype(np.float32)
    scale = 1.0 if tensor.startswith("token_embd") else 1.5 / np.sqrt(ne[0])
    return (noise * scale).astype(np.float32)


def _encode(kind: type[codec.Codec], values: np.ndarray[Any, Any]) -> bytes:
    if kind.n_values == 1:
        return values.astype(kind.block).tobytes()
    out = np.empty(values.size // kind.n_values, kind.block)
    rows = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    kind.encode(
        rows.ctypes.data, out.ctypes.data, len(rows), rows.shape[1], 0, codec.tables_address(kind)
    )
    return out.tobytes()


# -- vocabularies


def _bpe() -> dict[str, Any]:
    """Byte-level BPE: 256 bytes, merges learned from TEXT, three control tokens in front."""
    letters = _byte_letters()
    words = [[letters[b] for b in word] for word in _words()]
    merges: list[str] = []
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters]
    while len(tokens) < 288:
        pairs = Counter((a, b) for word in words for a, b in zip(word, word[1:]))
        (a, b), _ = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        merges.append(f"{a} {b}")
        tokens.append(a + b)
        words = [_merged(word, a, b) for word in words]
    return {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3] * 3 + [1] * (len(tokens) - 3),
        "merges": merges,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "padding_token_id": 2,
        "add_bos_token": False,
        "chat_template": CHAT,
    }


def _words() -> list[bytes]:
    """TEXT in words, each with the space before it."""
    parts = TEXT.replace("\n", " ").split(" ")
    return [(" " + word if i else word).encode() for i, word in enumerate(parts)]


def _merged(word: list[str], a: str, b: str) -> list[str]:
    out: list[str] = []
    for letter in word:
        if out and out[-1] == a and letter == b:
            out[-1] = a + b
        else:
            out.append(letter)
    return out


def _byte_letters() -> list[str]:
    """GPT-2's printable letter for each byte: itself, or one from 256 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(256 + others.index(b)) for b in range(256)]


def _spm() -> dict[str, Any]:
    """SPM: unknown, ends, all bytes, and the letters and frequent pieces of TEXT with scores by
    rank."""
    text = "\u2581" + TEXT.replace("\n", " ").replace(" ", "\u2581")
    letters = sorted(set(text))
    grams = Counter(text[i : i + n] for n in (2, 3, 4) for i in range(len(text) - n + 1))
    frequent = [g for g, _ in sorted(grams.items(), key=lambda item: (-item[1], item[0]))][:40]
    pieces = frequent + letters
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    return {
        "model": "llama",
        "pre": "default",
        "tokens": [*special, *(f"<0x{b:02X}>" for b in range(256)), *pieces],
        "scores": [0.0] * (len(special) + 256) + [-float(i + 1) for i in range(len(pieces))],
        "token_type": [3, 3, 3, 2, 3, 3] + [6] * 256 + [1] * len(pieces),
        "bos_token_id": 2,
        "eos_token_id": 1,
        "unknown_token_id": 3,
        "padding_token_id": 0,
        "eot_token_id": 5,
        "add_bos_token": True,
        "add_eos_token": False,
        "add_space_prefix": False,
    }


VOCABULARIES: dict[str, Callable[[], dict[str, Any]]] = {"bpe": _bpe, "spm": _spm}


# -- the folder


def manifest() -> str:
    """MANIFEST.toml: what made the files, and their hashes."""
    lines = [
        'made_by = "tools/make_tiny.py"',
        'made_from = "random numbers and the text in the tool"',
    ]
    for name in MODELS:
        path = FOLDER / f"{name}.gguf"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines += ["", f'["{path.name}"]', f"bytes = {path.stat().st_size}", f'sha256 = "{digest}"']
    return "\n".join(lines) + "\n"


def check() -> list[str]:
    """Names of models that are not what would be written now."""
    different = []
    with tempfile.TemporaryDirectory() as folder:
        for name in MODELS:
            path, there = Path(folder) / f"{name}.gguf", FOLDER / f"{name}.gguf"
            write(name, path)
            if not there.exists() or there.read_bytes() != path.read_bytes():
                different.append(name)
    return different


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--only", metavar="NAME", choices=sorted(MODELS))
    args = parser.parse_args()
    if args.check:
        different = check()
        print(f"not as written now: {', '.join(different)}" if different else "all the same")
        return int(bool(different))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in [args.only] if args.only else MODELS:
        write(name, FOLDER / f"{name}.gguf")
        print(f"{name}.gguf {(FOLDER / f'{name}.gguf').stat().st_size:,} bytes")
    (FOLDER / "MANIFEST.toml").write_text(manifest())
    return 0


if __name__ == "__main__":
    sys.exit(main())
