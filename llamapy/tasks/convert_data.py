"""The data of a converted file: read, made and encoded, a few pieces ahead of who writes them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any, TypeVar

import numpy as np

from llamapy.convert import halves
from llamapy.convert.plan import Tensor
from llamapy.core.errors import QuantError
from llamapy.core.log import log
from llamapy.gguf.limits import shown
from llamapy.native import crew
from llamapy.quants import codec

Array = np.ndarray[Any, Any]
T = TypeVar("T")

PLAIN = ("f32", "f16", "bf16")
AHEAD = 3  # pieces
ToHalf = Callable[[Array], Array]
Told = Callable[[], None]
COMPILED_FROM = 1 << 26  # values: fewer are cast sooner than machine code is loaded


class Data:
    """The bytes of all tensors, to be asked for in the order of the file, in a `with`.

    One thread reads, another encodes, whoever asks writes. More would only wait for each other
    between numpy's short steps; quantizing has its own.
    """

    def __init__(
        self, tensors: Sequence[Tensor], kinds: dict[str, str], threads: int, on_compile: Told
    ) -> None:
        self.tensors, self.kinds, self.threads = tensors, kinds, threads
        self.on_compile = on_compile
        self._made: Generator[tuple[str, Array], None, None] | None = None
        self._next: tuple[str, Array] | None = None

    def of(self, name: str) -> Iterator[Array]:
        """The pieces of a tensor."""
        if self._made is None:  # here and not in another thread: Ctrl-C would wait for compilers
            self._made = ahead(self._encode(compiled(self.tensors, self.kinds, self.on_compile)))
        while one := self._next or next(self._made, None):
            self._next = one
            if one[0] != name:
                return
            self._next = None
            yield one[1]

    def _encode(self, to_half: ToHalf) -> Iterator[tuple[str, Array]]:
        with closing(ahead((one, rows) for one in self.tensors for rows in one.pieces())) as read:
            for one, rows in read:
                yield one.name, encoded(one, rows, self.kinds[one.name], self.threads, to_half)

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            self._made.close()


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items, made by a thread that is up to AHEAD of them ahead."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="llamapy-convert")
    end: Any = object()
    try:
        made = deque(pool.submit(next, items, end) for _ in range(AHEAD))
        while (one := made.popleft().result()) is not end:
            made.append(pool.submit(next, items, end))
            yield one
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        if isinstance(items, Generator):
            items.close()


def compiled(tensors: Sequence[Tensor], kinds: dict[str, str], on_compile: Told) -> ToHalf:
    """Load the machine code of all types, compiled if need be, which is told; gives what makes
    halves."""
    quantized = sorted({kind for kind in kinds.values() if kind not in PLAIN})
    if quantized:
        from llamapy.backend.cpu.threads import budget

        wanted: list[crew.Wanted] = [(codec.get(k).encode, codec.ENCODE) for k in quantized]
        crew.load(wanted, budget(), lambda name, done, total: on_compile())
    return cast_for(tensors, kinds)


def cast_for(tensors: Sequence[Tensor], kinds: dict[str, str]) -> ToHalf:
    """What makes halves of float32: machine code, compiled once, if there is enough to do."""
    n = sum(t.n_elements for t in tensors if t.dtype == "F32" and kinds[t.name] == "f16")
    if n < COMPILED_FROM or not _has_room():
        return halves.of_singles
    encode: Any = codec.get("f16").encode
    encode.load(*codec.ENCODE)

    def cast(values: Array) -> Array:
        values = np.ascontiguousarray(values, np.float32)
        made = np.empty(values.shape, np.float16)
        encode(values.ctypes.data, made.ctypes.data, 1, values.size, 0, 0)
        # ggml's NaN is not numpy's, and files are to be those that numpy makes.
        return made if halves.all_finite(made) else halves.of_singles(values)

    return cast


def _has_room() -> bool:
    """Whether addresses are without limit: else LLVM may find none, and ends the process then."""
    if sys.platform == "win32":
        return True
    import resource

    return resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def encoded(
    tensor: Tensor, rows: Array, kind: str, threads: int, to_half: ToHalf = halves.of_singles
) -> Array:
    """Rows of a tensor in a type. QuantError names the tensor."""
    if kind in PLAIN:
        return _float(rows, tensor, kind, to_half)
    from llamapy.quants import api

    try:
        return api.quantize(_float(rows, tensor, "f32", to_half), kind, threads=threads)
    except QuantError as error:
        raise QuantError(f"tensor {shown(tensor.name)}: {error.message}") from None


def _float(rows: Array, tensor: Tensor, kind: str, to_half: ToHalf) -> Array:
    """Rows as float32, float16, or the bits of bfloat16."""
    if tensor.dtype.lower() == kind:
        return rows
    is_bfloat = tensor.dtype == "BF16"
    if kind == "f16":
        made = halves.of_bfloats(rows) if is_bfloat else to_half(rows)
        if halves.overflow(made, rows):
            log.warning("tensor %s has values beyond f16: they become infinite", shown(tensor.name))
        return made
    singles = halves.singles(rows) if is_bfloat else np.ascontiguousarray(rows, "<f4")
    return to_bfloat(singles) if kind == "bf16" else singles


def to_bfloat(values: Array) -> Array:
    """Bits of the nearest bfloat16, halves to even; a NaN stays one. float32 -> uint16."""
    bits = values.view("<u4")
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(nan, (bits >> 16) | 64, rounded).astype("<u2")
