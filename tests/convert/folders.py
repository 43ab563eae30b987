"""Hugging Face folders for tests: the recorded tiny models, and makers of small odd ones."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parents[2] / "fixtures" / "archs"
CASES = sorted(path.parent.name for path in RECORDED.glob("*/upstream.json"))
_OWN = ("truth.npz", "upstream.json")

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int32": "I32", "uint8": "U8"}
DTYPES |= {"int64": "I64", "uint16": "BF16", "int8": "I8"}


@cache
def facts(case: str) -> dict[str, Any]:
    """What is recorded of a case besides its files: tokenizer, and hashes of upstream's files."""
    found: dict[str, Any] = json.loads((RECORDED / case / "upstream.json").read_text())
    return found


def truth(case: str) -> Mapping[str, Any]:
    """Token ids, and the values that transformers computes."""
    return np.load(RECORDED / case / "truth.npz")


def assemble(case: str, into: Path) -> Path:
    """The whole folder of a case, with its tokenizer: `into`/`case`."""
    folder = into / case
    shutil.copytree(RECORDED / case, folder, ignore=shutil.ignore_patterns(*_OWN))
    for path in (RECORDED / "tokenizers" / facts(case)["tokenizer"]).iterdir():
        shutil.copy(path, folder)
    return folder


def read_safetensors(path: Path) -> dict[str, tuple[str, np.ndarray]]:
    """{name: (type, array)}, with bfloat16 as its bits: the format, told a second time."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    kinds = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "F8_E4M3": "u1"}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            a, b = (8 + size + n for n in entry["data_offsets"])
            values = np.frombuffer(raw[a:b], kinds[entry["dtype"]]).reshape(entry["shape"])
            found[name] = (entry["dtype"], values)
    return found


def write_safetensors(path: Path, tensors: Mapping[str, Any]) -> None:
    """Arrays, or (type, array), to a file."""
    header, blobs, at = {}, [], 0
    for name, given in tensors.items():
        dtype, values = given if isinstance(given, tuple) else (DTYPES[given.dtype.name], given)
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(values.shape),
            "data_offsets": [at, at + len(raw)],
        }
        blobs.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def floats(dtype: str, values: np.ndarray) -> np.ndarray:
    """Stored values as float32."""
    if dtype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def blow_up(folder: Path, n_embd: int = 1024, n_ff: int = 8192, n_layer: int = 4) -> int:
    """Blow the tiny Llama up to several files, of 16 MB matrices; the largest tensor's bytes."""
    path = folder / "config.json"
    sizes = {"hidden_size": n_embd, "intermediate_size": n_ff, "num_hidden_layers": n_layer}
    sizes |= {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": n_embd // 8}
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    (folder / "model.safetensors").unlink()
    values = np.full(n_ff * n_embd, 0x3C01, np.uint16)

    def bits(*shape: int) -> tuple[str, Any]:
        return "BF16", values[: int(np.prod(shape))].reshape(shape)

    outer = {"model.embed_tokens.weight": bits(272, n_embd), "lm_head.weight": bits(272, n_embd)}
    parts = [outer | {"model.norm.weight": bits(n_embd)}]
    for i in range(n_layer):
        where = f"model.layers.{i}."
        parts.append(
            {f"{where}self_attn.{n}_proj.weight": bits(n_embd, n_embd) for n in "qkvo"}
            | {f"{where}mlp.{n}_proj.weight": bits(n_ff, n_embd) for n in ("gate", "up")}
            | {f"{where}mlp.down_proj.weight": bits(n_embd, n_ff)}
            | {f"{where}{n}_layernorm.weight": bits(n_embd) for n in ("input", "post_attention")}
        )
    places = {}
    for i, part in enumerate(parts):
        name = f"model-{i:05d}-of-{len(parts):05d}.safetensors"
        write_safetensors(folder / name, part)
        places |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return values.nbytes
