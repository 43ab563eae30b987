"""A GGUF file through transformers and back: loaded, saved as safetensors, converted again.

All tensors must be those of the original as the `gguf` package dequantizes them, bit for bit, and
the perplexity that of the original dequantized. Needs an interpreter with torch, transformers and
gguf (--python).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from llamapy.runtime.model import Model
from llamapy.tasks import convert
from llamapy.tasks.perplexity import perplexity
from llamapy.tasks.quantize import quantize_file

SAVE = """
import os, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
folder, name = os.path.split(os.path.abspath(sys.argv[1]))
plain = GgufConfig(dequantize=True)
model = AutoModelForCausalLM.from_pretrained(
    folder, gguf_file=name, quantization_config=plain, dtype=torch.float32
)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(sys.argv[2], max_shard_size="150MB")
AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(sys.argv[2])
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this comparison."""
    parser.add_argument("model", type=Path, nargs="+", help="GGUF files of causal models")
    parser.add_argument("--text", type=Path, required=True, help="text for the perplexity")
    parser.add_argument("--chunks", type=int, default=4, help="so much of it, in chunks of 512")
    parser.add_argument("--python", default=sys.executable, help="has torch and transformers")
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Compare all files; a row each."""
    print(f"{'model':24} {'equal tensors':>14} {'perplexity':>11} {'original':>11}", flush=True)
    rows = []
    for model in args.model:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            row = compare(args, model, Path(folder))
        rows.append(row)
        print(
            f"{row['model'][:24]:24} {row['equal']:>7} of {row['tensors']:>3}"
            f" {row['ppl']:11.6f} {row['ppl_original']:11.6f}",
            flush=True,
        )
    return rows


def compare(args: argparse.Namespace, model: Path, folder: Path) -> dict[str, Any]:
    """One file: how many tensors are equal, and both perplexities."""
    saved, back, plain = folder / "hf", folder / "back.gguf", folder / "plain.gguf"
    done = subprocess.run(
        [args.python, "-c", SAVE, str(model), str(saved)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"transformers fails: {done.stderr.strip()[-2000:]}")
    convert.run(convert.prepare(saved, convert.Options(outtype="f32", output=back)))
    want, found = values(model), values(back)
    equal = sum(name in found and found[name].tobytes() == v.tobytes() for name, v in want.items())
    quantize_file(model, plain, "f32", allow_requantize=True)
    text = args.text.read_bytes()
    measured = [perplexity(Model(path), text, chunks=args.chunks).ppl for path in (back, plain)]
    return {
        "model": model.name,
        "tensors": len(want.keys() | found.keys()),
        "equal": equal,
        "ppl": measured[0],
        "ppl_original": measured[1],
    }


def values(path: Path) -> dict[str, np.ndarray]:
    """All tensors as float32, by the official package."""
    return {one.name: dequantize(one.data, one.tensor_type) for one in GGUFReader(path).tensors}
