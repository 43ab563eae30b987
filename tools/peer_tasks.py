"""What llama.cpp's tools do with the peer: quantize a file, measure perplexity, measure speed.

Each follows its tool (llama-quantize, llama-perplexity, llama-bench) in what it feeds and counts.
"""

from __future__ import annotations

import ctypes as C
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import peer_abi as abi
from peer import Context, Floats, Model, Override, Peer, kv_overrides
from peer_fetch import PeerError


@dataclass(frozen=True)
class QuantizeOptions:
    """The options of llama-quantize. Types are names (`q4_k`); `tensor_types` maps regexes to them.

    `imatrix` maps tensor names to importances, one a column (times experts), not to be altered.
    """

    threads: int = 2
    allow_requantize: bool = False
    leave_output_tensor: bool = False
    output_tensor_type: str = ""
    token_embedding_type: str = ""
    pure: bool = False
    keep_split: bool = False
    dry_run: bool = False
    imatrix: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    overrides: Mapping[str, Override] = field(default_factory=dict)
    tensor_types: Sequence[tuple[str, str]] = ()
    prune_layers: Sequence[int] = ()
    max_buffer_bytes: int = 0


def quantize(peer: Peer, src: str | Path, dst: str | Path, ftype: str, **options: Any) -> float:
    """Write `dst` as `src` in the file type `ftype` (`Q4_K_M`, `COPY`); the seconds it took.

    `options` are the fields of QuantizeOptions. With `keep_split`, `dst` has no suffix.
    """
    if ftype.upper() not in abi.FTYPES:
        raise PeerError(f"unknown file type {ftype!r}; there are {', '.join(abi.FTYPES)}")
    o = QuantizeOptions(**options)
    params = peer.lib.llama_model_quantize_default_params()
    params.nthread, params.ftype = o.threads, abi.FTYPES[ftype.upper()]
    params.only_copy, params.pure = ftype.upper() == "COPY", o.pure
    params.allow_requantize, params.keep_split = o.allow_requantize, o.keep_split
    params.quantize_output_tensor, params.dry_run = not o.leave_output_tensor, o.dry_run
    params.max_buf_size = o.max_buffer_bytes or params.max_buf_size
    if o.output_tensor_type:
        params.output_tensor_type = peer.type_id(o.output_tensor_type)
    if o.token_embedding_type:
        params.token_embedding_type = peer.type_id(o.token_embedding_type)
    keep = _tables(peer, o)  # alive until the call is over
    for name, table in keep.items():
        setattr(params, name, C.cast(table, C.c_void_p))
    start = time.perf_counter()
    status = peer.lib.llama_model_quantize(os.fsencode(src), os.fsencode(dst), C.byref(params))
    if status:
        raise peer.error(f"llama.cpp cannot quantize {src} to {ftype}")
    return time.perf_counter() - start


def _tables(peer: Peer, o: QuantizeOptions) -> dict[str, Any]:
    """The lists of the parameter struct that are not empty, each closed by its own end mark."""
    tables: dict[str, Any] = {}
    if o.imatrix:
        values = {n: np.ascontiguousarray(v, np.float32).ravel() for n, v in o.imatrix.items()}
        floats = C.POINTER(C.c_float)
        rows = [(n.encode(), v.ctypes.data_as(floats), v.size) for n, v in values.items()]
        tables["imatrix"] = _table(abi.ImatrixEntry, [*rows, (None,)])
    if o.overrides:
        tables["kv_overrides"] = kv_overrides(o.overrides)
    if o.tensor_types:
        types = [(pattern.encode(), peer.type_id(name)) for pattern, name in o.tensor_types]
        tables["tt_overrides"] = _table(abi.TensorOverride, [*types, (None, abi.N_TYPES)])
    if o.prune_layers:
        layers = [*sorted(set(o.prune_layers)), -1]
        tables["prune_layers"] = (C.c_int32 * len(layers))(*layers)
    return tables


def _table(kind: type[C.Structure], rows: Sequence[tuple[Any, ...]]) -> C.Array[Any]:
    return (kind * len(rows))(*(kind(*row) for row in rows))


@dataclass(frozen=True)
class Perplexity:
    """Perplexity with its standard error, the sum of `-log p` by chunk, tokens scored, seconds."""

    ppl: float
    ppl_err: float
    chunk_nll: list[float]
    n_tokens: int
    seconds: float


def perplexity(
    model: Model,
    text: str | bytes,
    n_ctx: int = 512,
    *,
    n_batch: int = 2048,
    chunks: int | None = None,
    on_chunk: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Perplexity:
    """llama-perplexity's figure: chunks of `n_ctx` tokens side by side in one batch, each opened by
    BOS where the model wants one, and the second half of each scored. `options` as for a context.
    """
    tokens = np.array(model.tokenize(text, parse_special=False), np.int32)
    if len(tokens) < 2 * n_ctx:
        raise PeerError(f"the text has {len(tokens)} tokens, at least {2 * n_ctx} are needed")
    n_chunk = min(len(tokens) // n_ctx, chunks or len(tokens))
    n_seq = max(1, n_batch // n_ctx)
    nll: list[npt.NDArray[np.float64]] = []
    start = time.perf_counter()
    with model.context(n_ctx=n_seq * n_ctx, n_batch=n_batch, n_seq=n_seq, **options) as context:
        for first in range(0, n_chunk, n_seq):
            part = tokens[first * n_ctx : min(first + n_seq, n_chunk) * n_ctx].reshape(-1, n_ctx)
            nll.extend(_chunk_nll(context, part))
            if on_chunk:
                on_chunk(len(nll), n_chunk)
    seconds = time.perf_counter() - start
    each = np.concatenate(nll)
    ppl = float(np.exp(each.mean()))
    error = float(np.sqrt(max(np.mean(each**2) - each.mean() ** 2, 0) / max(len(each) - 1, 1)))
    return Perplexity(ppl, ppl * error, [float(c.sum()) for c in nll], len(each), seconds)


def _chunk_nll(context: Context, part: npt.NDArray[np.int32]) -> Iterator[npt.NDArray[np.float64]]:
    """`-log p` of the scored tokens of each row of `part` [n_seq, n_ctx], all in one pass."""
    n_seq, n_ctx = part.shape
    half, fed = n_ctx // 2, part.copy()
    if context.model.add_bos:
        fed[:, 0] = context.model.bos
    context.clear()
    step = max(1, context.options.n_batch // n_seq)
    rows: list[list[Floats]] = [[] for _ in range(n_seq)]
    for at in range(0, n_ctx, step):
        position = np.arange(at, min(at + step, n_ctx))
        scored = position >= half
        context.decode(
            fed[:, position].ravel(),
            positions=np.tile(position, n_seq),
            sequences=np.repeat(np.arange(n_seq), len(position)),
            outputs=np.tile(scored, n_seq),
        )
        if n := int(scored.sum()):
            for mine, logits in zip(rows, np.split(context.rows(n_seq * n), n_seq), strict=True):
                mine.append(logits)
    for row, found in zip(part, rows, strict=True):
        yield _nll(np.concatenate(found)[:-1], row[half + 1 :])


def _nll(logits: Floats, want: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """`-log softmax(logits)[want]` a row; logits are overwritten."""
    logits -= logits.max(axis=1, keepdims=True)
    picked = logits[np.arange(len(want)), want].astype(np.float64)
    np.exp(logits, out=logits)
    nll: npt.NDArray[np.float64] = np.log(logits.sum(axis=1, dtype=np.float64)) - picked
    return nll


def bench(
    model: Model,
    *,
    n_prompt: int = 512,
    n_gen: int = 64,
    depth: int = 0,
    n_seq: int = 1,
    reps: int = 5,
    **options: Any,
) -> dict[str, list[float]]:
    """Tokens per second of prefill (`pp`) and of decode (`tg`), one figure a repetition.

    As llama-bench: random tokens, a warm-up that is not counted, the first `depth` tokens filled
    outside the clock. `n_seq` sequences are decoded in each step of `tg`, each one `depth` deep.
    """
    room = depth + max(n_prompt, n_gen)
    options.setdefault("n_ctx", n_seq * room)
    rng = np.random.default_rng(0)
    draw: Callable[[int], npt.NDArray[Any]] = lambda n: rng.integers(0, model.n_vocab, n)  # noqa: E731
    samples: dict[str, list[float]] = {"pp": [], "tg": []}
    with model.context(n_seq=n_seq, **options) as context:
        state = _filled(context, draw(depth))
        for rep in range(reps + 1):
            if n_prompt:
                state(1)
                tokens = draw(n_prompt)
                seconds = _timed(lambda: context.prefill(tokens, depth))  # noqa: B023
                samples["pp"] += [n_prompt / seconds] if rep else []
            if n_gen:
                state(n_seq)
                steps = draw(n_gen * n_seq).reshape(n_gen, n_seq) if rep else draw(n_seq)[None]
                seconds = _timed(lambda: _generate(context, steps, depth))  # noqa: B023
                samples["tg"] += [steps.size / seconds] if rep else []
    return {name: figures for name, figures in samples.items() if figures}


def _timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _generate(context: Context, steps: npt.NDArray[Any], depth: int) -> None:
    """Decode `steps` [n_gen, n_seq], one token of each sequence at a time."""
    n_seq = steps.shape[1]
    for i, tokens in enumerate(steps):
        context.decode(
            tokens,
            positions=np.full(n_seq, depth + i),
            sequences=np.arange(n_seq),
            outputs=np.ones(n_seq),
        )


def _filled(context: Context, tokens: npt.NDArray[Any]) -> Callable[[int], None]:
    """A function that makes the first n sequences hold just `tokens`, computed only once."""
    lib = context.lib
    if not len(tokens):
        return lambda n_seq: context.clear()
    context.clear()
    context.prefill(tokens)
    size = lib.llama_state_seq_get_size(context.handle, 0)
    data = np.empty(size, np.uint8)
    lib.llama_state_seq_get_data(context.handle, data.ctypes.data, size, 0)

    def restore(n_seq: int) -> None:
        context.clear()
        for seq in range(n_seq):
            if not lib.llama_state_seq_set_data(context.handle, data.ctypes.data, size, seq):
                raise context.model.peer.error("llama.cpp cannot restore a sequence")

    return restore
