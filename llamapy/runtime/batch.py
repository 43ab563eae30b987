"""What is decoded at once: tokens (or embeddings), their positions and sequences, and which outputs
are wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Protocol

import numpy as np

from llamapy.core.errors import BatchError
from llamapy.runtime.memory.cells import Bools, Ints

Floats = np.ndarray[Any, np.dtype[np.float32]]
Sequences = int | Sequence[int] | Sequence[Sequence[int]]


class Positions(Protocol):
    """What a batch must fit to: the memory's positions."""

    def pos_max(self, seq: int) -> int: ...


@dataclass
class Batch:
    """tokens       ids [n]; or `embeddings` float32 [n, n_embd] in their stead
    positions    [n]; None: each sequence goes on after the last position in memory
    sequences    one id for all, one each, or a list of ids each (a token that several share);
                 default 0
    outputs      "last" (of each sequence), "all", "none", or a bool each: whose logits are wanted
    """

    tokens: Sequence[int] | Ints | None = None
    embeddings: Floats | None = None
    positions: Sequence[int] | Ints | None = None
    sequences: Sequences | Ints = 0
    outputs: str | Sequence[bool] | Bools = "last"


@dataclass(frozen=True)
class Tokens:
    """A checked batch, or a part of one (a ubatch).

    ids         i32 [n], or None where embeddings are given
    embeddings  f32 [n, n_embd] or None
    pos         i32 [n]
    seqs        bool [n, n_seq_max]
    seq         i64 [n]: the first of each token's sequences
    wanted      bool [n]
    """

    ids: Ints | None
    embeddings: Floats | None
    pos: Ints
    seqs: Bools
    seq: np.ndarray[Any, np.dtype[np.int64]]
    wanted: Bools

    def __len__(self) -> int:
        return len(self.pos)

    @cached_property
    def n_outputs(self) -> int:
        return int(np.count_nonzero(self.wanted))

    def parts(self, n_ubatch: int) -> Iterator[Tokens]:
        """Consecutive parts of at most n_ubatch tokens."""
        if len(self) <= n_ubatch:
            yield self
            return
        for start in range(0, len(self), n_ubatch):
            at = slice(start, start + n_ubatch)
            yield Tokens(
                None if self.ids is None else self.ids[at],
                None if self.embeddings is None else self.embeddings[at],
                self.pos[at],
                self.seqs[at],
                self.seq[at],
                self.wanted[at],
            )


def check(batch: Batch, memory: Positions, *, n_vocab: int, n_embd: int, n_seq_max: int) -> Tokens:
    """The batch as arrays. BatchError says which token is wrong and how."""
    following = _one_more(batch, memory, n_vocab, n_seq_max)
    if following is not None:
        return following
    ids = _ids(batch, n_vocab)
    embeddings = _embeddings(batch, n_embd)
    if (ids is None) == (embeddings is None):
        raise BatchError("a batch holds either tokens or embeddings")
    n = len(ids) if embeddings is None else len(embeddings)  # type: ignore[arg-type]
    if n == 0:
        raise BatchError("the batch is empty")
    seqs = _sequences(batch.sequences, n, n_seq_max)
    if isinstance(batch.sequences, int) and batch.positions is None:  # one text that goes on
        seq = batch.sequences
        pos = np.arange(n, dtype=np.int32) + (memory.pos_max(seq) + 1)
        first = np.full(n, seq)
    else:
        last = {int(s): memory.pos_max(int(s)) for s in np.flatnonzero(seqs.any(axis=0))}
        pos = _positions(batch, n, seqs, last)
        _check_order(pos, seqs, last)
        first = seqs.argmax(axis=1)
    return Tokens(ids, embeddings, pos, seqs, first, _wanted(batch.outputs, n, first))


def _one_more(batch: Batch, memory: Positions, n_vocab: int, n_seq_max: int) -> Tokens | None:
    """A valid batch of one token that a text goes on with: nearly all are, and a quarter of a
    millisecond of arrays is much beside one token of a small model. None for any other."""
    tokens, seq = batch.tokens, batch.sequences
    if not isinstance(tokens, list) or len(tokens) != 1 or type(tokens[0]) is not int:
        return None
    if batch.positions is not None or batch.embeddings is not None or type(seq) is not int:
        return None
    if not isinstance(batch.outputs, str) or batch.outputs not in ("last", "all"):
        return None
    if not (0 <= tokens[0] < n_vocab and 0 <= seq < n_seq_max):
        return None
    pos = np.array([memory.pos_max(seq) + 1], np.int32)
    return Tokens(np.array(tokens, np.int32), None, pos, *_one_of(seq, n_seq_max))


@lru_cache
def _one_of(seq: int, n_seq_max: int) -> tuple[Bools, np.ndarray[Any, np.dtype[np.int64]], Bools]:
    """`seqs`, `seq` and `wanted` of one token in one sequence. Nobody writes to these."""
    seqs = np.zeros((1, n_seq_max), np.bool_)
    seqs[0, seq] = True
    found = seqs, np.array([seq], np.int64), np.ones(1, np.bool_)
    for array in found:
        array.setflags(write=False)
    return found


def _ids(batch: Batch, n_vocab: int) -> Ints | None:
    if batch.tokens is None:
        return None
    given = np.asarray(batch.tokens)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise BatchError("tokens must be a list of integers")
    if given.size and not 0 <= given.min() <= given.max() < n_vocab:
        at = int(((given < 0) | (given >= n_vocab)).argmax())
        raise BatchError(f"token {at} of the batch is {given[at]}; ids go from 0 to {n_vocab - 1}")
    return given.astype(np.int32)


def _embeddings(batch: Batch, n_embd: int) -> Floats | None:
    if batch.embeddings is None:
        return None
    given = np.asarray(batch.embeddings, np.float32)
    if given.ndim != 2 or given.shape[1] != n_embd:
        raise BatchError(f"embeddings have shape {list(given.shape)}, needed is [n, {n_embd}]")
    return given


def _sequences(given: Sequences | Ints, n: int, n_seq_max: int) -> Bools:
    if isinstance(given, int) and 0 <= given < n_seq_max:
        seqs = np.zeros((n, n_seq_max), np.bool_)
        seqs[:, given] = True
        return seqs
    if isinstance(given, (int, np.integer)):
        given = [int(given)] * n
    if len(given) != n:
        raise BatchError(f"{len(given)} sequences for {n} tokens")
    seqs = np.zeros((n, n_seq_max), np.bool_)
    for i, entry in enumerate(given):
        ids = [int(entry)] if isinstance(entry, (int, np.integer)) else [int(s) for s in entry]
        if not ids or min(ids) < 0 or max(ids) >= n_seq_max:
            raise BatchError(
                f"token {i} of the batch has sequences {ids}; they go from 0 to {n_seq_max - 1}"
            )
        seqs[i, ids] = True
    return seqs


def _positions(batch: Batch, n: int, seqs: Bools, last: dict[int, int]) -> Ints:
    if batch.positions is not None:
        pos = np.asarray(batch.positions)
        if pos.shape != (n,) or pos.dtype.kind not in "iu":
            raise BatchError(f"positions must be {n} integers")
        if pos.min() < 0:
            raise BatchError(f"token {int(pos.argmin())} of the batch has position {pos.min()}")
        return pos.astype(np.int32)
    following = {seq: end + 1 for seq, end in last.items()}
    pos = np.empty(n, np.int32)
    for i in range(n):
        mine = [int(s) for s in np.flatnonzero(seqs[i])]
        pos[i] = following[mine[0]]
        following.update({s: int(pos[i]) + 1 for s in mine})
    return pos


def _check_order(pos: Ints, seqs: Bools, last: dict[int, int]) -> None:
    """Each sequence goes on right after its last position in memory, one by one (several tokens may
    not share a position)."""
    for seq, end in last.items():
        mine = pos[seqs[:, seq]]
        if end >= 0 and mine[0] != end + 1:
            raise BatchError(
                f"sequence {seq} ends at position {end}, but the batch goes on at {mine[0]}",
                hint=f"give position {end + 1}, or remove positions from {mine[0]} on first",
            )
        gaps = np.flatnonzero(np.diff(mine) != 1)
        if len(gaps):
            a, b = mine[gaps[0]], mine[gaps[0] + 1]
            raise BatchError(
                f"in sequence {seq} position {b} follows {a}: they must be consecutive"
            )


def _wanted(outputs: Any, n: int, first: np.ndarray[Any, Any]) -> Bools:
    if isinstance(outputs, str):
        if outputs not in ("last", "all", "none"):
            raise BatchError(f"outputs are {outputs!r}, not last, all or none")
        wanted = np.full(n, outputs == "all")
        if outputs == "last":
            for seq in set(first.tolist()):
                wanted[np.flatnonzero(first == seq)[-1]] = True
        return wanted
    wanted = np.asarray(outputs, np.bool_)
    if wanted.shape != (n,):
        raise BatchError(f"{wanted.size} outputs for {n} tokens")
    return wanted
