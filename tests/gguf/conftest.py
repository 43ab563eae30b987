"""What ours is compared with: the `gguf` package, and ggml's own C code through ctypes."""

from __future__ import annotations

import ctypes as C
from collections.abc import Callable
from pathlib import Path

import gguf
import libggml
import numpy as np
import pytest

SIZES = {int(kind): sizes for kind, sizes in gguf.GGML_QUANT_SIZES.items()}


class _InitParams(C.Structure):
    _fields_ = [("no_alloc", C.c_bool), ("ctx", C.POINTER(C.c_void_p))]


class CGguf:
    """ggml's own GGUF code (gguf.cpp, as packed in libggml-python)."""

    def __init__(self) -> None:
        folder = Path(libggml.__file__).parent / "lib64"
        self._lib = lib = C.CDLL(str(folder / "libggml-base.so"))
        pointer, text, number = C.c_void_p, C.c_char_p, C.c_int64
        for name, result, arguments in (
            ("gguf_init_from_file", pointer, [text, _InitParams]),
            ("gguf_init_empty", pointer, []),
            ("gguf_free", None, [pointer]),
            ("ggml_free", None, [pointer]),
            ("gguf_set_kv", None, [pointer, pointer]),
            ("gguf_get_n_tensors", number, [pointer]),
            ("gguf_get_n_kv", number, [pointer]),
            ("gguf_get_tensor_name", text, [pointer, number]),
            ("gguf_get_tensor_offset", C.c_size_t, [pointer, number]),
            ("gguf_get_tensor_size", C.c_size_t, [pointer, number]),
            ("gguf_get_data_offset", C.c_size_t, [pointer]),
            ("ggml_get_tensor", pointer, [pointer, text]),
            ("gguf_add_tensor", None, [pointer, pointer]),
            ("ggml_type_size", C.c_size_t, [C.c_int]),
            ("gguf_write_to_file", C.c_bool, [pointer, text, C.c_bool]),
        ):
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
        self._silence = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)(lambda *_: None)
        lib.ggml_log_set(self._silence, None)

    def accepts(self, path: Path) -> bool:
        """Whether the header passes, data left unread (as when a model is loaded)."""
        data = C.c_void_p()
        context = self._lib.gguf_init_from_file(
            str(path).encode(), _InitParams(True, C.pointer(data))
        )
        if not context:
            return False
        self._lib.ggml_free(data)
        self._lib.gguf_free(context)
        return True

    def tensors(self, path: Path) -> list[tuple[str, int, int]]:
        """Name, absolute offset and bytes of every tensor."""
        context = self._lib.gguf_init_from_file(str(path).encode(), _InitParams(True, None))
        start = self._lib.gguf_get_data_offset(context)
        found = [
            (
                self._lib.gguf_get_tensor_name(context, i).decode(),
                start + self._lib.gguf_get_tensor_offset(context, i),
                self._lib.gguf_get_tensor_size(context, i),
            )
            for i in range(self._lib.gguf_get_n_tensors(context))
        ]
        self._lib.gguf_free(context)
        return found

    def block_bytes(self, type_id: int) -> int:
        """Bytes of a block of this type."""
        return self._lib.ggml_type_size(type_id)

    def rewrite(self, source: Path, target: Path) -> None:
        """Read a file and write what it holds again."""
        data = C.c_void_p()
        context = self._lib.gguf_init_from_file(
            str(source).encode(), _InitParams(False, C.pointer(data))
        )
        assert context
        out = self._lib.gguf_init_empty()
        self._lib.gguf_set_kv(out, context)
        for i in range(self._lib.gguf_get_n_tensors(context)):
            name = self._lib.gguf_get_tensor_name(context, i)
            self._lib.gguf_add_tensor(out, self._lib.ggml_get_tensor(data, name))
        assert self._lib.gguf_write_to_file(out, str(target).encode(), False)
        for free, what in (("gguf_free", out), ("ggml_free", data), ("gguf_free", context)):
            getattr(self._lib, free)(what)


@pytest.fixture(scope="session")
def c_gguf() -> CGguf:
    return CGguf()


@pytest.fixture(scope="session")
def sizes() -> Callable[[int], tuple[int, int] | None]:
    """Block geometry from the `gguf` package."""
    return SIZES.get


def _write(path: Path, *, endian: str = "<", alignment: int = 0) -> Path:
    big = endian == ">"
    order = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    if alignment:
        writer.add_custom_alignment(alignment)
    for kind, value in (
        ("uint8", 250),
        ("int8", -7),
        ("uint16", 65000),
        ("int16", -30000),
        ("uint32", 4000000000),
        ("int32", -2000000000),
        ("float32", 0.1),
        ("uint64", 2**63 + 5),
        ("int64", -(2**62)),
        ("float64", 0.1),
        ("bool", True),
        ("string", "naïve 日本語\n\x00z"),
    ):
        getattr(writer, f"add_{kind}")(f"test.{kind}", value)
    writer.add_array("test.strings", ["a", "", "日本", "x" * 300])
    writer.add_array("test.ints", [1, -2, 3])
    writer.add_array("test.floats", [0.5, float("inf"), float("nan")])
    writer.add_array("test.bools", [True, False])
    writer.add_key_value("test.bytes", bytes(range(256)), gguf.GGUFValueType.ARRAY)
    writer.add_key_value(
        "test.u64", [1, 2**64 - 1], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64
    )
    rng = np.random.default_rng(1)
    writer.add_tensor("f32.weight", rng.standard_normal((3, 5), np.float32))
    writer.add_tensor("f16.weight", rng.standard_normal((2, 1, 7)).astype(np.float16))
    writer.add_tensor("one", np.ones((1, 1, 4), np.float32))
    writer.add_tensor("i8", np.arange(5, dtype=np.int8))
    values = rng.standard_normal((4, 64), np.float32)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0):
        blocks = gguf.quants.quantize(values, kind)
        if big:  # as gguf-py's converter does: the scale alone is turned around
            blocks = blocks.copy()
            view = blocks.reshape(-1, SIZES[int(kind)][1])
            view[:, :2] = view[:, 1::-1]
        writer.add_tensor(kind.name, blocks, raw_dtype=kind, tensor_endianess=order)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def official(tmp_path: Path) -> Callable[..., Path]:
    """Make a file of every value type and several tensor types with the `gguf` package."""

    def make(name: str = "official.gguf", **options: object) -> Path:
        return _write(tmp_path / name, **options)

    return make
