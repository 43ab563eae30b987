"""What a GGUF file may say, and how a refusal is worded.

The limits are those of llama.cpp's reader (ggml/src/gguf.cpp); what is counted must also fit in the
bytes left. Sizes are Python integers, so nothing can wrap around.
"""

from __future__ import annotations

import re
from math import prod
from os import PathLike, fspath

from llamapy.core.errors import FileFormatError

MAGIC = b"GGUF"
VERSION = 3  # the newest one; 2 has the same bytes
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_STRING = 1 << 30  # bytes
MAX_ARRAY = 1 << 30  # elements
MAX_DIMS = 4
MAX_NAME = 63  # bytes of a tensor's name; ggml keeps 64 with the final zero
MAX_COUNT = (1 << 63) - 1  # elements of a tensor
MIN_FIELD_BYTES = 13  # key length, value type, a value of one byte
MIN_TENSOR_BYTES = 24  # name length, dimension count, type, offset

_LFS = b"version https://git-lfs"
_OTHER_FORMATS = (
    (b"PK\x03\x04", "a zip archive or a PyTorch file", "convert it to GGUF first"),
    (b"\x80\x02", "a Python pickle", "convert it to GGUF first"),
    (b"\x93NUMPY", "a numpy array", ""),
    (b"lmgg", "a GGML file of 2023", "convert the original model again"),
    (b"fmgg", "a GGML file of 2023", "convert the original model again"),
    (b"tjgg", "a GGML file of 2023", "convert the original model again"),
    (b"<", "a web page or XML", "was the download answered with an error page?"),
)


def padded(n_bytes: int, alignment: int) -> int:
    """n_bytes rounded up to a multiple of the alignment."""
    return -(-n_bytes // alignment) * alignment


def shown(name: str | bytes) -> str:
    """A name for one line of a message: quoted, escaped, and cut if it is long."""
    text = name.decode("utf-8", "replace") if isinstance(name, bytes) else name
    return ascii(text) if len(text) <= 80 else ascii(text[:77]) + "..."


def truncated(
    path: str | PathLike[str], has: int, needs: int, *, field: str, offset: int | None = None
) -> FileFormatError:
    """The error for a file that ends before `needs` bytes."""
    hint = "the download is not complete, or the file is damaged"
    if re.search(r"part[-_.]?\w*\d$|\.\d{2,3}$", fspath(path)):
        hint = "this looks like a piece of a file: join the pieces with cat"
    message = f"truncated: has {has} bytes, needs {needs}"
    return FileFormatError(path, message, field=field, offset=offset, hint=hint)


def wrong_magic(path: str | PathLike[str], head: bytes) -> FileFormatError:
    """The error for a file that does not begin with GGUF. `head` is its first few hundred bytes."""
    if head.startswith(_LFS):
        size = re.search(rb"size (\d+)", head)
        stands = f" for {int(size[1])} bytes" if size else ""
        return FileFormatError(
            path,
            f"a Git LFS pointer{stands}, not the model itself",
            field="magic",
            offset=0,
            hint="fetch it with `git lfs pull`",
        )
    if head[8:10] == b'{"':
        return FileFormatError(
            path, "a safetensors file", field="magic", offset=0, hint="convert its folder to GGUF"
        )
    for start, what, hint in _OTHER_FORMATS:
        if head.startswith(start):
            return FileFormatError(path, f"not GGUF but {what}", field="magic", offset=0, hint=hint)
    got = "".join(chr(b) if 32 <= b < 127 else "?" for b in head[:4])
    return FileFormatError(path, f"not a GGUF file: begins with '{got}'", field="magic", offset=0)


def alignment_fault(value: int) -> str:
    """Why this alignment is refused, or an empty text."""
    if value <= 0 or value & (value - 1):
        return f"alignment {value} is not a power of two"
    return ""


def shape_fault(ne: tuple[int, ...]) -> str:
    """Why this shape is refused, or an empty text. Zeros are allowed: some models use them."""
    for i, n in enumerate(ne):
        if n < 0:
            return f"dimension {i} of {list(ne)} is {n}, less than 0"
    # A zero must not hide dimensions whose product no 64-bit reader could hold.
    count = prod(n for n in ne if n)
    if count > MAX_COUNT:
        return f"shape {list(ne)} has {count} elements, more than {MAX_COUNT}"
    return ""


def tensor_bytes(ne: tuple[int, ...], n_values: int, n_block_bytes: int) -> int:
    """Bytes of a tensor in blocks of n_values. ValueError, saying why, if rows do not divide."""
    row = ne[0] if ne else 1
    if n_values <= 0 or row % n_values:
        raise ValueError(f"rows of {row} elements do not divide into blocks of {n_values}")
    return prod(ne) // n_values * n_block_bytes
