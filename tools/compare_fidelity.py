"""Whose logits are nearer to the float32 reference: perplexity, and mean KL divergence from it,
ours and the peer's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import fetch_models
import numpy as np
import peer

N_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="*", type=Path, help="GGUF files (default: SmolLM2 and Gemma 3 270M)"
    )
    parser.add_argument(
        "--text", type=Path, help="a text of at least 512 tokens (default: Python's own manual)"
    )
    parser.add_argument("--tokens", type=int, default=N_TOKENS)


def english() -> str:
    """Prose that every Python carries: the topics of its manual."""
    from pydoc_data.topics import topics

    return "\n".join(
        topics[name] for name in ("naming", "exceptions", "objects", "operator-summary", "truth")
    )


def run(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    text = arguments.text.read_text() if arguments.text else english()
    paths = arguments.models or [fetch_models.smollm2(), fetch_models.gemma3()]
    rows = [measure(path, text, arguments.tokens) for path in paths]
    print(f"{'model':32} {'PPL ref':>9} {'ours':>9} {'peer':>9} {'KL ours':>10} {'KL peer':>10}")
    for r in rows:
        figures = [r[f"ppl_{who}"] for who in ("reference", "ours", "peer")]
        ppl = " ".join(f"{value:9.4f}" for value in figures)
        print(f"{r['model'][:32]:32} {ppl} {r['kl_ours']:10.6f} {r['kl_peer']:10.6f}")
        print(f"{'':32} ours / peer {r['ppl_ours'] / r['ppl_peer'] - 1:+.4%}")
    return rows


def measure(path: Path, text: str, n_tokens: int) -> dict[str, Any]:
    with peer.connect().open(path) as model:
        tokens = model.tokenize(text.encode(), add_special=True, parse_special=False)[:n_tokens]
        with model.context(n_ctx=n_tokens, n_batch=n_tokens, n_ubatch=n_tokens) as context:
            theirs = context.logits(tokens)
    truth = our_logits(path, tokens, "reference")
    ours = our_logits(path, tokens, "cpu")
    return {
        "model": path.name,
        "n_tokens": len(tokens),
        "ppl_reference": perplexity(truth, tokens),
        "ppl_ours": perplexity(ours, tokens),
        "ppl_peer": perplexity(theirs, tokens),
        "kl_ours": divergence(truth, ours),
        "kl_peer": divergence(truth, theirs),
    }


def our_logits(path: Path, tokens: list[int], backend: str) -> np.ndarray[Any, Any]:
    from llamapy.runtime.batch import Batch
    from llamapy.runtime.context import Context
    from llamapy.runtime.model import Model

    kind, n = "f32" if backend == "reference" else "f16", len(tokens)
    sizes: dict[str, Any] = {"n_ctx": n, "n_batch": n, "n_ubatch": n, "n_outputs_max": n}
    context = Context(Model(path), backend=backend, type_k=kind, type_v=kind, **sizes)
    return np.array(context.decode(Batch(tokens=tokens, outputs="all")))


def log_softmax(row: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    row = row.astype(np.float64)
    row -= row.max()
    return np.asarray(row - np.log(np.exp(row).sum()))


def perplexity(logits: np.ndarray[Any, Any], tokens: list[int]) -> float:
    """llama-perplexity's figure for one chunk: the second half is scored."""
    first = len(tokens) // 2
    nll = [-log_softmax(logits[i])[tokens[i + 1]] for i in range(first, len(tokens) - 1)]
    return float(np.exp(np.mean(nll)))


def divergence(truth: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Mean over positions of sum p (log p - log q)."""
    total = 0.0
    for p_row, q_row in zip(truth, other):
        p, q = log_softmax(p_row), log_softmax(q_row)
        total += float((np.exp(p) * (p - q)).sum())
    return total / len(truth)
