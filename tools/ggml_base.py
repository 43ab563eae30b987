"""quantize and dequantize as ggml's own base library does them, by ctypes (`libggml-python`).

The truth for codecs: built without fused multiply-add, so its bytes are those of any plain machine.
"""

from __future__ import annotations

import ctypes as C
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llamapy.quants import codec
from llamapy.quants.codec import Codec

# Their grids take ggml seconds to prepare, once a process.
SLOW_TABLES = frozenset({"iq2_xs", "iq2_s", "iq1_s", "iq1_m"})


class Traits(C.Structure):
    """ggml_type_traits of ggml.h."""

    _fields_ = [
        ("name", C.c_char_p),
        ("n_values", C.c_int64),
        ("n_interleaved", C.c_int64),
        ("n_bytes", C.c_size_t),
        ("is_quantized", C.c_bool),
        ("to_float", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)),
        ("from_float", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p, C.c_int64)),
    ]


class Ggml:
    """One libggml-base."""

    def __init__(self, path: Path) -> None:
        self.lib = C.CDLL(str(path))
        self.lib.ggml_get_type_traits.restype = C.POINTER(Traits)
        self.lib.ggml_quantize_requires_imatrix.restype = C.c_bool
        chunk = self.lib.ggml_quantize_chunk
        chunk.restype = C.c_size_t
        chunk.argtypes = [C.c_int, C.c_void_p, C.c_void_p, *[C.c_int64] * 3, C.c_void_p]

    def traits(self, type_id: int) -> Any:
        """Geometry and row functions of the type with this number."""
        return self.lib.ggml_get_type_traits(type_id).contents

    def needs_importance(self, type_id: int) -> bool:
        """Whether ggml_quantize_chunk stops the process without importances."""
        return bool(self.lib.ggml_quantize_requires_imatrix(type_id))

    def quantize(
        self, kind: str | type[Codec], values: ArrayLike, importance: ArrayLike | None = None
    ) -> NDArray[np.uint8]:
        """float32 [n_rows, n] -> uint8 [n_rows, row_bytes]."""
        kind = codec.get(kind)
        rows = np.ascontiguousarray(values, np.float32)
        out = np.zeros((len(rows), kind.row_bytes(rows.shape[1])), np.uint8)
        source, target = C.c_void_p(rows.ctypes.data), C.c_void_p(out.ctypes.data)
        if kind.name in ("q8_1", "q8_K"):  # for activations: not in ggml_quantize_chunk
            row = getattr(self.lib, f"quantize_row_{kind.name}_ref", None)
            (row or self.traits(kind.type_id).from_float)(source, target, C.c_int64(rows.size))
            return out
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        address = None if weights is None else weights.ctypes.data
        self.lib.ggml_quantize_chunk(kind.type_id, source, target, 0, *rows.shape, address)
        return out

    def dequantize(self, kind: str | type[Codec], blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
        """uint8 [n_rows, row_bytes] -> float32 [n_rows, n]."""
        kind = codec.get(kind)
        blocks = np.ascontiguousarray(blocks)
        if kind.name == "q8_1":  # ggml never reads it back: without its sums it is q8_0
            kept = blocks.reshape(-1, 36)[:, [0, 1, *range(4, 36)]]
            return self.dequantize("q8_0", kept.reshape(len(blocks), -1))
        n = blocks.shape[1] // kind.n_bytes * kind.n_values
        out = np.empty((len(blocks), n), np.float32)
        row = self.lib.dequantize_row_q8_K if kind.name == "q8_K" else None
        row = row or self.traits(kind.type_id).to_float
        row(C.c_void_p(blocks.ctypes.data), C.c_void_p(out.ctypes.data), C.c_int64(out.size))
        return out


def connect() -> Ggml | None:
    """The library of the installed `libggml-python`; None without it."""
    spec = find_spec("libggml")
    folders = spec.submodule_search_locations if spec else None
    found = sorted(Path(folders[0]).rglob("libggml-base.so")) if folders else []
    return Ggml(found[0]) if found else None
