"""Which cells each token sees, as attention reads it: halves, 0 or minus infinity.

In compiled code: it is made anew for every ubatch, and between two tokens of a small model each
operation on an array, found nowhere in the caches, takes a percent of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from llamapy.native import compiled, crew, mem
from llamapy.nn.cache import Layer
from llamapy.runtime.memory.cells import Bools, Ints

if TYPE_CHECKING:
    from llamapy.runtime.batch import Tokens

Halves = np.ndarray[Any, np.dtype[np.float16]]


@compiled
def fill(  # type: ignore[no-untyped-def]
    out, n_tokens, n_kv, own, seq, pos, seqs, n_seq_max, causal, window, distances
):
    """out: halves [n_tokens, n_kv]; own i32, seq i64 [n_tokens]; pos i32 [n_kv], seqs bytes [n_kv,
    n_seq_max]; distances: whether what is seen has minus its distance."""
    for t in range(n_tokens):
        row, p, held = out + 2 * n_kv * t, mem.i32(own, t), seqs + mem.i64(seq, t)
        for j in range(n_kv):
            q = mem.i32(pos, j)
            seen = mem.u8(held, n_seq_max * j) != 0
            seen = seen and not (causal != 0 and q > p)
            seen = seen and not (window > 0 and q <= p - window)
            value = np.float32(-abs(p - q) if distances != 0 else 0)
            mem.put_f16(row, j, value if seen else np.float32(-np.inf))


crew.always(fill, *(int,) * 11)


def mask(layer: Layer, part: Tokens, pos: Ints, seqs: Bools) -> Halves:
    """Which of the cells (`pos` [n_kv], `seqs` [n_kv, n_seq_max]) each token sees: f16 [n_tokens,
    n_kv].

    0 is seen, -inf hidden; with ALiBi seen cells have minus their distance.
    """
    assert pos.flags.c_contiguous and seqs.flags.c_contiguous
    own, seq = np.ascontiguousarray(part.pos, np.int32), np.ascontiguousarray(part.seq, np.int64)
    out = np.empty((len(own), len(pos)), np.float16)
    tokens, cells = (_at(own), _at(seq)), (_at(pos), _at(seqs), seqs.shape[1])
    how = int(layer.causal), layer.window, int(layer.max_bias > 0)
    fill(_at(out), *out.shape, *tokens, *cells, *how)
    return out


def _at(array: np.ndarray[Any, Any]) -> int:
    """The address of its first element; a tenth of the time of `array.ctypes.data`."""
    address: int = array.__array_interface__["data"][0]
    return address
