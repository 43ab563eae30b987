"""How well logits foretell tokens: log-probabilities of rows, in compiled code on several threads.

Rows are float32 [n, n_vocab]; sums of exponentials are kept in double, as llama-perplexity does.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llamapy.native import compiled, mem, simd

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ids = NDArray[np.int32]

_BLOCK = 4096  # terms that are summed in single precision


@compiled
def greatest(x, n):  # type: ignore[no-untyped-def]
    """The largest of n floats at address x."""
    top, whole = np.float32(-np.inf), n // 16 * 16
    if whole > 0:
        best = simd.load_f32x16(x)
        for i in range(16, whole, 16):
            best = simd.max_f32x16(best, simd.load_f32x16(x + 4 * i))
        top = simd.greatest_f32x16(best)
    for i in range(whole, n):
        top = max(top, mem.f32(x, i))
    return top


@compiled
def sum_exp(x, n, top):  # type: ignore[no-untyped-def]
    """The sum of exp(x - top) over n floats at address x."""
    total, whole, shift = np.float64(0), n // 16 * 16, simd.splat_f32x16(top)
    for start in range(0, whole, _BLOCK):
        part = simd.zeros_f32x16()
        for i in range(start, min(start + _BLOCK, whole), 16):
            part = part + simd.exp_f32x16(simd.load_f32x16(x + 4 * i) - shift)
        total += np.float64(simd.total_f32x16(part))
    for i in range(whole, n):
        total += np.exp(np.float64(mem.f32(x, i) - top))
    return total


@compiled
def normalizers(x, n_vocab, first, last, out):  # type: ignore[no-untyped-def]
    """Write max and log of the sum of exponentials of rows first to last - 1: pairs of float64."""
    for r in range(first, last):
        row = x + 4 * r * n_vocab
        top = greatest(row, n_vocab)
        mem.put_f64(out, 2 * r, np.float64(top))
        mem.put_f64(out, 2 * r + 1, np.log(sum_exp(row, n_vocab, top)))


class Rows:
    """Shares work on rows between `threads` threads. Close it, or use it in a `with`."""

    def __init__(self, threads: int) -> None:
        self.threads = max(1, threads)
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

    def __enter__(self) -> Rows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def each(self, n: int, work: Callable[[int, int], None]) -> None:
        """Call work(first, last) so that the parts cover 0 to n - 1."""
        if self._pool is None or n < self.threads:
            work(0, n)
            return
        step = -(-n // (2 * self.threads))
        parts = [(at, min(at + step, n)) for at in range(0, n, step)]
        for done in [self._pool.submit(work, *part) for part in parts]:
            done.result()

    def normalizers(self, logits: Floats) -> tuple[Doubles, Doubles]:
        """(max, log sum exp(logits - max)) of each row, float64 [n]."""
        logits = contiguous(logits)
        out = np.empty((len(logits), 2), np.float64)
        x, y = logits.ctypes.data, out.ctypes.data
        n_vocab = logits.shape[1]
        self.each(len(logits), lambda first, last: normalizers(x, n_vocab, first, last, y))
        return out[:, 0], out[:, 1]

    def nll(self, logits: Floats, targets: Ids) -> Doubles:
        """-log p of one token a row, float64 [n]."""
        top, log_sum = self.normalizers(logits)
        return top + log_sum - logits[np.arange(len(targets)), targets]


def contiguous(array: NDArray[Any]) -> Floats:
    """float32, rows one after the other."""
    return np.ascontiguousarray(array, np.float32)
