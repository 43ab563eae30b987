"""Lazy numba: functions compile at the first call, are cached on disk, and see edits in the files
they call.

numba's own cache looks only at the file of the function itself, so an edit in another file that it
calls would go
unseen. Here every compiled function has a cache folder named by a hash of its file, of the files
of everything it
calls, of `llamapy/native`, and of the numba version and SIMD level.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from llamapy.core import settings
from llamapy.core.errors import LlamapyError
from llamapy.core.log import log

_lock = threading.RLock()
_NATIVE = Path(__file__).parent
# What only compiled code calls ends up in its callers: no wrappers for Python or C, and no place
# on disk.
_FOR_CALLERS = {"cache": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class LazyModule:
    """Stands for a module of compiled helpers until a function that names it is compiled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


class Compiled:
    """A Python function that numba compiles (nogil, no fast math) the first time it is called."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function = function
        self.options = options
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._dispatcher: Any = None
        self._inner: Any = None

    @property
    def files(self) -> frozenset[str]:
        """Source files that the compiled code depends on."""
        return _files(self.function)

    @property
    def inner(self) -> Any:
        """The dispatcher for compiled callers: kept in memory only, its code ends up in theirs."""
        if self._inner is None:
            with _lock:
                if self._inner is None:
                    self._inner = _dispatcher(self.function, {**self.options, **_FOR_CALLERS})
        return self._inner

    @property
    def dispatcher(self) -> Any:
        """The dispatcher for Python callers, cached on disk."""
        if self._dispatcher is None:
            with _lock:
                if self._dispatcher is None:
                    self._dispatcher = _dispatcher(self.function, self.options)
        return self._dispatcher

    def __call__(self, *args: Any) -> Any:
        return self.dispatcher(*args)


class ByType:
    """A function (or a constant, with no arguments) that depends on a tensor type named by a
    phantom argument."""

    def __init__(self, name: str, resolve: Callable[[str], Any], n_args: int) -> None:
        self.name, self.resolve, self.n_args = name, resolve, n_args
        self._stub: Any = None

    def __call__(self, *args: Any) -> Any:
        """Only compiled code can call it: something else takes the place of this object there."""
        raise TypeError(f"{self.name} is for compiled code")

    @property
    def inner(self) -> Any:
        """What numba calls: a stub with an overload."""
        if self._stub is None:
            phantom: Any = importlib.import_module("llamapy.native.phantom")
            self._stub = phantom.make_by_type(self.name, self.resolve, self.n_args)
        return self._stub


class Macro:
    """A helper that one of the makers in `native.memory` builds when it is first needed: no
    function of its own."""

    def __init__(self, maker: str, *arguments: Any) -> None:
        self.maker, self.arguments = maker, arguments
        self._made: Any = None

    def __call__(self, *args: Any) -> Any:
        """Only compiled code can call it: something else takes the place of this object there."""
        raise TypeError(f"{self.maker} is for compiled code")

    @property
    def inner(self) -> Any:
        if self._made is None:
            module = importlib.import_module("llamapy.native.memory")
            self._made = getattr(module, self.maker)(*self.arguments)
        return self._made


class Kernel:
    """A function of the fixed kernel signature, compiled for each pair of tensor types it is asked
    for.

    kernel(node, ith, nth, sync, a, b): address of the node's record, this thread's number, the
    number of threads,
    address of the shared words; a and b are phantoms of the tensor types.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__
        self._made: dict[tuple[str, str], Any] = {}

    def is_ready(self, a: str, b: str) -> bool:
        """Whether it has been compiled in this process."""
        return (a, b) in self._made

    def address(self, a: str = "", b: str = "") -> int:
        """The address of the kernel for types `a` and `b`, compiled (or read from the cache) if
        need be."""
        if (a, b) not in self._made:
            load_numba()
            from numba import types

            phantom: Any = importlib.import_module("llamapy.native.phantom")

            arguments: list[Any] = [types.int64] * 4
            arguments += [phantom.Phantom(a), phantom.Phantom(b)]
            self._made[a, b] = kernel_address(self.function, arguments, (a, b))
        return int(self._made[a, b].address)


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a module-level function to be compiled at its first call. Options as
    numba.njit's."""
    if function is not None:
        return Compiled(function)
    return lambda f: Compiled(f, **options)


def kernel_address(
    function: Callable[..., Any], argument_types: list[Any], labels: tuple[str, ...]
) -> Any:
    """Compile `function` as a C callback of void(argument_types); keep the result alive, use its
    `.address`."""
    with _lock:
        numba = load_numba()
        linked = link(function)
        _use_cache(_files(function, labels=labels))
        signature = numba.types.void(*argument_types)
        options = {"nogil": True, "error_model": "numpy", "boundscheck": False}
        return numba.cfunc(signature, cache=_cache_root() is not None, **options)(linked)


def load_numba() -> Any:
    """Import numba, once, with the settings that llamapy needs."""
    import numba

    return numba


def link(function: Callable[..., Any]) -> FunctionType:
    """A copy of `function` that sees real modules and dispatchers where it names lazy ones."""
    assert isinstance(function, FunctionType)
    space = dict(function.__globals__)
    names = _names(function.__code__)
    for name in names:
        value = space.get(name)
        if isinstance(value, LazyModule):
            space[name] = importlib.import_module(value._name)
        elif isinstance(value, Compiled | ByType | Macro):
            space[name] = value.inner
        elif isinstance(value, ModuleType) and value.__name__.startswith("llamapy."):
            space[name] = _linked_module(value, names)
    copy = FunctionType(
        function.__code__, space, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__, copy.__qualname__, copy.__doc__ = (
        function.__module__,
        function.__qualname__,
        function.__doc__,
    )
    return copy


def _linked_module(module: ModuleType, names: set[str]) -> ModuleType:
    """The module, with dispatchers for those of its compiled members that are named."""
    members = {
        n: m for n in names if isinstance(m := vars(module).get(n), Compiled | ByType | Macro)
    }
    if not members:
        return module
    copy = ModuleType(module.__name__)
    vars(copy).update(vars(module))
    vars(copy).update({name: member.inner for name, member in members.items()})
    return copy


def _dispatcher(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    numba = load_numba()
    linked = link(function)
    _use_cache(_files(function))
    given = {"nogil": True, "error_model": "numpy", "cache": _cache_root() is not None, **options}
    return numba.njit(**given)(linked)


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _files(
    function: Callable[..., Any], seen: set[int] | None = None, labels: tuple[str, ...] = ()
) -> frozenset[str]:
    """The file of `function` and of every compiled function that it reaches by name, or by type
    for these labels."""
    seen = set() if seen is None else seen
    if id(function) in seen:
        return frozenset()
    seen.add(id(function))
    files = {function.__code__.co_filename}  # type: ignore[attr-defined]
    space = function.__globals__  # type: ignore[attr-defined]
    names = _names(function.__code__)  # type: ignore[attr-defined]
    for name in names:
        value = space.get(name)
        members = [value]
        if isinstance(value, ModuleType) and value.__name__.startswith("llamapy."):
            files.add(str(value.__file__))  # for its constants
            members = [vars(value).get(n) for n in names]
        for member in members:
            for inner in _inner(member, labels):
                files |= _files(inner, seen, labels)
    return frozenset(files)


def _inner(member: Any, labels: tuple[str, ...]) -> list[FunctionType]:
    """The Python functions behind something that compiled code names."""
    found: list[Any] = [member]
    if isinstance(member, ByType):
        for label in labels:
            try:
                found.append(member.resolve(label))
            except (LookupError, LlamapyError):  # a label of another kind
                continue
    return [
        m.function
        for m in found
        if isinstance(m, Compiled) and isinstance(m.function, FunctionType)
    ]


@cache
def _digest(path: str) -> bytes:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError:
        return path.encode()


def _use_cache(files: frozenset[str]) -> None:
    """Point numba at the cache folder of this set of sources (it reads the setting when a function
    is made)."""
    root = _cache_root()
    if root is None:
        return
    import numba

    parts = hashlib.sha256(f"{numba.__version__} {settings.isa()}".encode())
    native = {str(p) for p in _NATIVE.rglob("*.py")}
    for path in sorted(files | native):
        parts.update(_digest(path))
    config: Any = numba.config
    config.CACHE_DIR = str(root / parts.hexdigest()[:16])


@cache
def _cache_root() -> Path | None:
    """The first folder that can be written: the setting, the user's cache, a private temporary
    one; else none."""
    explicit = settings.kernel_cache_dir()
    owner = getattr(os, "getuid", lambda: 0)()
    temporary = Path(tempfile.gettempdir()) / f"llamapy-kernels-{owner}"
    for folder in [Path(explicit)] if explicit else [settings.cache_dir() / "kernels", temporary]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    log.warning(
        "no folder for compiled kernels can be written: they are compiled anew at every start"
    )
    return None
