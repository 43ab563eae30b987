"""ggml's own GGUF reader and writer in C, through ctypes (libggml-base of PyPI libggml-python)."""

from __future__ import annotations

import ctypes as C
from pathlib import Path

import libggml


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
