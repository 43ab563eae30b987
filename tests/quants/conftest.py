"""The truth for codecs: ggml's own base library, by ctypes (the `libggml-python` package)."""

import ctypes as C
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from llamapy.quants import codec


class _Traits(C.Structure):
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
    """quantize and dequantize as libggml-base does."""

    def __init__(self, path):
        self.lib = C.CDLL(str(path))
        self.lib.ggml_get_type_traits.restype = C.POINTER(_Traits)
        chunk = self.lib.ggml_quantize_chunk
        chunk.restype = C.c_size_t
        chunk.argtypes = [C.c_int, C.c_void_p, C.c_void_p, *[C.c_int64] * 3, C.c_void_p]

    def traits(self, type_id):
        return self.lib.ggml_get_type_traits(type_id).contents

    def needs_importance(self, type_id):
        return bool(self.lib.ggml_quantize_requires_imatrix(type_id) & 255)

    def quantize(self, kind, values, importance=None):
        """float32 [n_rows, n] -> uint8 [n_rows, row_bytes]."""
        kind = codec.get(kind)
        values = np.ascontiguousarray(values, np.float32)
        out = np.zeros((len(values), kind.row_bytes(values.shape[1])), np.uint8)
        if kind.name in ("q8_1", "q8_K"):  # activation types: not in ggml_quantize_chunk
            row = getattr(self.lib, f"quantize_row_{kind.name}_ref", None)
            row = row or self.traits(kind.type_id).from_float
            row(C.c_void_p(values.ctypes.data), C.c_void_p(out.ctypes.data), C.c_int64(values.size))
            return out
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        address = None if weights is None else weights.ctypes.data
        shape = (0, *values.shape)
        self.lib.ggml_quantize_chunk(
            kind.type_id, values.ctypes.data, out.ctypes.data, *shape, address
        )
        return out

    def dequantize(self, kind, blocks):
        """uint8 [n_rows, row_bytes] -> float32 [n_rows, n]."""
        kind = codec.get(kind)
        blocks = np.ascontiguousarray(blocks)
        n = blocks.shape[1] // kind.n_bytes * kind.n_values
        out = np.empty((len(blocks), n), np.float32)
        if kind.name == "q8_1":  # no one reads it back: without its sums it is q8_0
            view = np.ascontiguousarray(blocks.reshape(-1, 36)[:, [0, 1, *range(4, 36)]])
            return self.dequantize("q8_0", view.reshape(len(blocks), -1))
        if kind.name == "q8_K":
            read = self.lib.dequantize_row_q8_K
            read.argtypes, read.restype = [C.c_void_p, C.c_void_p, C.c_int64], None
        else:
            read = self.traits(kind.type_id).to_float
        read(blocks.ctypes.data, out.ctypes.data, out.size)
        return out


@pytest.fixture(scope="session")
def ggml():
    spec = find_spec("libggml")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("libggml-python is not installed")
    found = sorted(Path(spec.submodule_search_locations[0]).rglob("libggml-base.so"))
    if not found:
        pytest.skip("libggml-python has no libggml-base.so for this system")
    return Ggml(found[0])
