"""The command line of the peer: `python tools/peer.py COMMAND --help`. Output is JSON, a line."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from peer import Context, Model, connect
from peer_fetch import PeerError
from peer_tasks import bench, perplexity, quantize


def main(argv: list[str] | None = None) -> None:
    """Run one command; a failure is one line on stderr and exit code 1."""
    arguments = _parser().parse_args(argv)
    try:
        result = arguments.act(arguments)
    except (PeerError, OSError) as error:
        sys.exit(f"peer: {error}")
    print(json.dumps(result))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="peer", description="Drive a prebuilt llama.cpp.")
    parser.add_argument("--verbose", action="store_true", help="show llama.cpp's log on stderr")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(act: Any, *positional: str) -> argparse.ArgumentParser:
        name = act.__name__.strip("_").replace("_", "-")
        sub = commands.add_parser(name, help=act.__doc__, description=act.__doc__)
        sub.set_defaults(act=act)
        for argument in positional:
            sub.add_argument(argument)
        return sub

    command(_system_info)
    sub = command(_tokenize, "model", "text")
    sub.add_argument("--no-bos", action="store_true")
    sub.add_argument("--no-special", action="store_true")
    command(_detokenize, "model").add_argument("ids", type=int, nargs="+")
    sub = _with_context(command(_greedy, "model", "text"))
    sub.add_argument("-n", type=int, default=32)
    _with_context(command(_logits, "model", "text", "out"))
    sub = _with_context(command(_embed, "model", "text"))
    sub.add_argument("--pooling", default="", choices=["none", "mean", "cls", "last", "rank"])
    sub = _with_context(command(_bench, "model"))
    for flag, default in (("-p", 512), ("-n", 64), ("-d", 0), ("-r", 5), ("--sequences", 1)):
        sub.add_argument(flag, type=int, default=default)
    _quantize_options(command(_quantize, "src", "dst", "ftype"))
    sub = _with_context(command(_perplexity, "model", "file"))
    sub.add_argument("--chunks", type=int)
    return parser


def _with_context(sub: argparse.ArgumentParser) -> argparse.ArgumentParser:
    sub.add_argument("-t", "--threads", type=int, default=2)
    sub.add_argument("-c", "--ctx", type=int, help="tokens of context")
    sub.add_argument("-b", "--batch", type=int, default=2048)
    sub.add_argument("-ub", "--ubatch", type=int, default=512)
    sub.add_argument("-fa", "--flash-attn", choices=["on", "off", "auto"], default="auto")
    sub.add_argument("-ctk", "--type-k", default="f16")
    sub.add_argument("-ctv", "--type-v", default="f16")
    sub.add_argument("--no-repack", action="store_true")
    return sub


def _quantize_options(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("-t", "--threads", type=int, default=2)
    for flag in ("allow-requantize", "leave-output-tensor", "pure", "keep-split", "dry-run"):
        sub.add_argument(f"--{flag}", action="store_true")
    sub.add_argument("--output-tensor-type", default="")
    sub.add_argument("--token-embedding-type", default="")
    sub.add_argument("--tensor-type", action="append", default=[], metavar="REGEX=TYPE")
    sub.add_argument("--prune-layers", type=int, nargs="+", default=[])
    sub.add_argument("--imatrix", metavar="FILE.npz", help="one array a tensor name")


def _open(a: argparse.Namespace, **options: Any) -> Model:
    repack = not getattr(a, "no_repack", False)
    return connect(a.verbose).open(a.model, repack=repack, **options)


def _options(a: argparse.Namespace) -> dict[str, Any]:
    return {
        "n_ubatch": a.ubatch,
        "threads": a.threads,
        "flash_attention": a.flash_attn,
        "type_k": a.type_k,
        "type_v": a.type_v,
    }


def _context(a: argparse.Namespace, model: Model, n_ctx: int, **more: Any) -> Context:
    return model.context(n_ctx=a.ctx or n_ctx, n_batch=a.batch, **_options(a), **more)


def _system_info(a: argparse.Namespace) -> object:
    """Release and CPU features."""
    return connect(a.verbose).system_info()


def _tokenize(a: argparse.Namespace) -> object:
    """Token ids of a text."""
    with _open(a, vocab_only=True) as model:
        return model.tokenize(a.text, add_special=not a.no_bos, parse_special=not a.no_special)


def _detokenize(a: argparse.Namespace) -> object:
    """The text of token ids."""
    with _open(a, vocab_only=True) as model:
        return model.detokenize(a.ids).decode(errors="backslashreplace")


def _greedy(a: argparse.Namespace) -> object:
    """The most probable continuation of a text."""
    with _open(a) as model:
        prompt = model.tokenize(a.text)
        with _context(a, model, len(prompt) + a.n) as context:
            tokens = context.greedy(prompt, a.n)
        text = model.detokenize(tokens).decode(errors="backslashreplace")
        return {"prompt": prompt, "tokens": tokens, "text": text}


def _logits(a: argparse.Namespace) -> object:
    """Write the logits of every position to a .npy file."""
    with _open(a) as model:
        prompt = model.tokenize(a.text)
        with _context(a, model, len(prompt)) as context:
            logits = context.logits(prompt)
    np.save(a.out, logits)
    return {"tokens": prompt, "shape": logits.shape}


def _embed(a: argparse.Namespace) -> object:
    """The embedding of a text."""
    with _open(a) as model:
        prompt = model.tokenize(a.text)
        more = {"embeddings": True, "pooling": a.pooling}
        with _context(a, model, max(len(prompt), 32), **more) as context:
            return context.embed(prompt).tolist()


def _bench(a: argparse.Namespace) -> object:
    """Tokens per second of prefill and decode: median and samples."""
    options = _options(a) | {"n_batch": a.batch} | ({"n_ctx": a.ctx} if a.ctx else {})
    with _open(a) as model:
        found = bench(
            model, n_prompt=a.p, n_gen=a.n, depth=a.d, n_seq=a.sequences, reps=a.r, **options
        )
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    return medians | {"samples": found}


def _quantize(a: argparse.Namespace) -> object:
    """Quantize a file as llama-quantize."""
    names = ["allow_requantize", "leave_output_tensor", "pure", "keep_split", "dry_run", "threads"]
    names += ["output_tensor_type", "token_embedding_type", "prune_layers"]
    options = {name: getattr(a, name) for name in names}
    options["tensor_types"] = [tuple(item.rsplit("=", 1)) for item in a.tensor_type]
    if a.imatrix:
        options["imatrix"] = dict(np.load(a.imatrix))
    seconds = quantize(connect(a.verbose), a.src, a.dst, a.ftype, **options)
    return {"seconds": seconds}


def _perplexity(a: argparse.Namespace) -> object:
    """Perplexity of a text file as llama-perplexity."""
    text = Path(a.file).read_bytes()
    with _open(a) as model:
        result = perplexity(
            model, text, a.ctx or 512, n_batch=a.batch, chunks=a.chunks, **_options(a)
        )
    return vars(result)


if __name__ == "__main__":
    main()
