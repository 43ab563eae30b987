"""Files of a base model's log-probabilities, for divergences.

llama-perplexity's form (tools/perplexity/perplexity.cpp), 16 bits: "_logits_", i32 n_ctx, n_vocab,
n_chunk, i32 tokens [n_chunk, n_ctx]; then for each scored token 2 * ((n_vocab + 1) / 2) + 4 u16:
f32 scale, f32 least log-probability, a code for each token; log p = code * scale + least. At most
16 nats below the best are told apart.

Our exact form, 32 bits: "_logf32_", the same head, then f32 [n_vocab] log-probabilities a token.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.core.errors import FileFormatError, UsageError
from llamapy.gguf.output import PendingFiles

Floats = NDArray[np.float32]
Ids = NDArray[np.int32]

MAGIC = {"u16": b"_logits_", "f32": b"_logf32_"}
RANGE = np.float32(16)  # nats that 16-bit codes span


def row_bytes(form: str, n_vocab: int) -> int:
    """Bytes of one token's log-probabilities."""
    return 4 * n_vocab if form == "f32" else 2 * (2 * ((n_vocab + 1) // 2) + 4)


def scored(n_ctx: int) -> int:
    """Scored tokens of a chunk."""
    return n_ctx - 1 - n_ctx // 2


def encode(form: str, logits: Floats, top: NDArray[Any], log_sum: NDArray[Any]) -> bytes:
    """Rows of logits [n, n_vocab] with their largest and log sum of exponentials [n] as bytes."""
    n, n_vocab = logits.shape
    if form == "f32":
        log_p = logits - (top + log_sum)[:, None]
        return bytes(log_p.astype("<f4").tobytes())
    top32, sum32 = top.astype(np.float32), log_sum.astype(np.float32)
    least = np.maximum(logits.min(axis=1), top32 - RANGE)
    scale = (top32 - least) / np.float32(65535)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rows = np.zeros((n, row_bytes(form, n_vocab) // 2), "<u2")
    head = np.stack([scale, least - top32 - sum32], axis=1).astype("<f4")
    rows[:, :4] = head.view("<u2")
    codes = np.rint(inverse[:, None] * np.maximum(logits - least[:, None], 0))
    rows[:, 4 : 4 + n_vocab] = codes.astype(np.uint16)
    return bytes(rows.tobytes())


def decode(form: str, data: NDArray[np.uint8], n_vocab: int) -> Floats:
    """Log-probabilities float32 [n, n_vocab] of rows of bytes [n, row_bytes]."""
    if form == "f32":
        return data.view("<f4").astype(np.float32, copy=False)
    head = np.ascontiguousarray(data[:, :8]).view("<f4")
    codes = np.ascontiguousarray(data[:, 8 : 8 + 2 * n_vocab]).view("<u2")
    found: Floats = codes * head[:, :1] + head[:, 1:2]
    return found


class Writer:
    """Writes a file chunk by chunk; it appears under its name when all is there."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        tokens: Ids,
        n_vocab: int,
        *,
        form: str = "u16",
        overwrite: bool = True,
    ) -> None:
        if form not in MAGIC:
            raise UsageError(f"no logits format {form!r}", hint="there are u16 and f32")
        self.form = form
        n_chunk, n_ctx = tokens.shape
        head = MAGIC[form] + np.array([n_ctx, n_vocab, n_chunk], "<i4").tobytes()
        self._head = head + tokens.astype("<i4").tobytes()
        size = len(self._head) + n_chunk * scored(n_ctx) * row_bytes(form, n_vocab)
        self._pending = PendingFiles([(Path(path), size)], overwrite=overwrite)

    def __enter__(self) -> Writer:
        self._pending.__enter__()
        self._open = self._pending.open(0)
        self._file = self._open.__enter__()
        self._file.write(self._head)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, where)
        self._pending.__exit__(kind, error, where)

    def add(self, logits: Floats, top: NDArray[Any], log_sum: NDArray[Any]) -> None:
        """Write the next scored tokens."""
        self._file.write(encode(self.form, logits, top, log_sum))


@dataclass
class LogitsFile:
    """A file that is read. tokens: i32 [n_chunk, n_ctx]."""

    path: str
    form: str
    n_ctx: int
    n_vocab: int
    tokens: Ids
    _rows: NDArray[np.uint8]

    @property
    def n_chunk(self) -> int:
        return len(self.tokens)

    def rows(self, chunk: int, first: int, last: int) -> Floats:
        """Log-probabilities float32 [last - first, n_vocab] of scored tokens of a chunk."""
        start = chunk * scored(self.n_ctx)
        return decode(self.form, self._rows[start + first : start + last], self.n_vocab)


def open_logits(path: str | os.PathLike[str]) -> LogitsFile:
    """Open a file of either form. FileFormatError if it is neither, or shorter than it says."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            head = file.read(20)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise FileFormatError(name, f"cannot be opened: {error.strerror}") from None
    form = next((form for form, magic in MAGIC.items() if head[:8] == magic), None)
    if form is None or len(head) < 20:
        raise FileFormatError(name, "is no file of log-probabilities", offset=0)
    n_ctx, n_vocab, n_chunk = (int(n) for n in np.frombuffer(head[8:], "<i4"))
    if n_ctx < 4 or n_vocab < 1 or n_chunk < 1:
        message = f"{n_chunk} chunks of {n_ctx} tokens with {n_vocab} logits cannot be"
        raise FileFormatError(name, message, offset=8)
    width, n_rows = row_bytes(form, n_vocab), n_chunk * scored(n_ctx)
    needed = 20 + 4 * n_ctx * n_chunk + width * n_rows
    if size < needed:
        raise FileFormatError(
            name, f"has {size} bytes, {n_chunk} chunks of {n_ctx} tokens need {needed}"
        )
    mapped = np.memmap(name, np.uint8, "r")
    start = 20 + 4 * n_ctx * n_chunk
    tokens = mapped[20:start].copy().view("<i4").reshape(n_chunk, n_ctx).astype(np.int32)
    if (tokens < 0).any() or (tokens >= n_vocab).any():
        raise FileFormatError(name, "a token is not of the vocabulary", offset=20)
    rows = mapped[start : start + width * n_rows].reshape(n_rows, width)
    return LogitsFile(name, form, n_ctx, n_vocab, tokens, rows)
