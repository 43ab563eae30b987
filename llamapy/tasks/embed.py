"""Vectors of texts: hidden states of a model, made one vector a text and normalised.

Ways of pooling and norms, with their numbers, are those of llama-embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from llamapy.core.errors import ModelError, UsageError
from llamapy.runtime.batch import Batch
from llamapy.runtime.context import Context
from llamapy.runtime.model import Model

Floats = np.ndarray[Any, np.dtype[np.float32]]

POOLINGS = ("none", "mean", "cls", "last", "rank")  # by the value of pooling_type
AT_ONCE, MOST_TEXTS = 512, 32  # tokens and texts that are computed together
MAX_INT16 = 32760.0  # what the largest value becomes with norm 0


def embed(
    model: Model,
    texts: Sequence[str],
    *,
    pooling: str = "",
    normalize: int = 2,
    threads: int | None = None,
    backend: str = "",
    on_done: Callable[[int, int], None] | None = None,
) -> list[Floats]:
    """A vector for each text, float32 [n_embd]; with pooling "none" one a token, [n_tokens,
    n_embd].

    pooling    mean, cls (the first token), last or none; "" is what the file says, else none
    normalize  -1 not, 0 largest value 32760, 1 sum of sizes, 2 length, p p-norm
    on_done    told how many texts are done, of how many
    UsageError names a text that is longer than the model's context.
    """
    way = _pooling(model, pooling)
    ids = [model.tokenize(text, add_special=True) for text in texts]
    longest = _check(model, ids)
    found: list[Floats | None] = [None] * len(texts)
    if not ids:
        return []
    options = {"backend": backend} if backend else {}
    context = Context(
        model,
        n_ctx=_room(model, longest),
        n_batch=max(longest, AT_ONCE),
        n_ubatch=max(longest, AT_ONCE) if not model.params.causal else AT_ONCE,
        n_seq_max=1 if model.params.causal else MOST_TEXTS,
        threads=threads,
        embeddings=True,
        **options,  # type: ignore[arg-type]
    )
    done = 0
    for group in _groups(ids, 1 if model.params.causal else MOST_TEXTS):
        for i, states in zip(group, _states(context, [ids[i] for i in group])):
            found[i] = normalized(_pooled(states, way), normalize)
        done += len(group)
        if on_done is not None:
            on_done(done, len(texts))
    return [vector for vector in found if vector is not None]


def _pooling(model: Model, wanted: str) -> str:
    number = model.params.pooling_type
    if not wanted and number >= len(POOLINGS):
        raise ModelError(f"{model.path}: pooling_type is {number}, known are 0 to 4")
    way = wanted or POOLINGS[number]
    if way == "rank":
        raise ModelError(
            f"{model.path}: ranks texts and gives no vectors", hint="try --pooling cls"
        )
    if way not in POOLINGS:
        raise UsageError(f"pooling is {way!r}", hint=f"there are {', '.join(POOLINGS[:4])}")
    return way


def _check(model: Model, ids: Sequence[Sequence[int]]) -> int:
    """The length of the longest text. UsageError if one is empty or does not fit."""
    limit = model.params.n_ctx_train
    for i, one in enumerate(ids):
        if not one:
            raise UsageError(f"text {i} is empty: it has no tokens")
        if len(one) > limit:
            raise UsageError(f"text {i} has {len(one)} tokens, the model's context {limit}")
    return max(map(len, ids), default=0)


def _room(model: Model, longest: int) -> int:
    return max(longest, AT_ONCE if not model.params.causal else 1)


def _groups(ids: Sequence[Sequence[int]], most: int) -> list[list[int]]:
    """Numbers of texts that are computed together, of like length."""
    groups: list[list[int]] = []
    n_tokens = 0
    for i in sorted(range(len(ids)), key=lambda i: len(ids[i])):
        if not groups or len(groups[-1]) == most or n_tokens + len(ids[i]) > AT_ONCE:
            groups.append([])
            n_tokens = 0
        groups[-1].append(i)
        n_tokens += len(ids[i])
    return groups


def _states(context: Context, group: Sequence[Sequence[int]]) -> list[Floats]:
    """Hidden states of each text, float32 [n_tokens, n_embd]."""
    context.memory.clear()
    tokens = [t for one in group for t in one]
    sequences = [i for i, one in enumerate(group) for _ in one]
    positions = [p for one in group for p in range(len(one))]
    context.decode(
        Batch(tokens, positions=positions, sequences=sequences, outputs="all"), copy=False
    )
    ends = np.cumsum([len(one) for one in group])[:-1]
    return np.split(context.embeddings.copy(), ends)


def _pooled(states: Floats, way: str) -> Floats:
    if way == "mean":
        mean: Floats = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
    if way == "none":
        return states
    one: Floats = states[0 if way == "cls" else -1]
    return one


def normalized(values: Floats, p: int) -> Floats:
    """Vectors along the last axis made to have p-norm 1; zeros stay. p as for `embed`."""
    if p < 0:
        return values
    sizes = np.abs(values.astype(np.float64))
    if p == 0:
        norm = sizes.max(axis=-1, keepdims=True) / MAX_INT16
    else:
        norm = (sizes**p).sum(axis=-1, keepdims=True) ** (1.0 / p)
    safe = np.where(norm > 0, norm, 1.0)
    made = values / safe
    return (np.trunc(made) if p == 0 else made).astype(np.float32)


def similarities(vectors: Sequence[Floats]) -> Floats:
    """Cosines between all pairs, float32 [n, n]."""
    rows = normalized(np.stack(vectors), 2).astype(np.float64)
    return (rows @ rows.T).astype(np.float32)
