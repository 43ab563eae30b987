"""Lazy numba: functions compile at the first call, and their machine code is kept on disk.

Compiled code takes and gives numbers; arrays go in by address. Nothing here imports numba: `build`
does when machine code must be made, `store` loads what was made before.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, get_type_hints

from llamapy.native import sources, store

_lock = threading.RLock()
# numba's options. All code ends up in its callers, at last in an entry: it needs no wrappers.
OPTIONS = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
_KINDS = {"bool": "i64", "int": "i64", "float": "f64", "float32": "f32", "float64": "f64"}
n_built = 0  # how many functions this process had to compile


class LazyModule:
    """Stands for a module of compiled helpers until a function that names it is compiled."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


class Compiled:
    """A Python function that numba compiles (nogil, no fast math) the first time it is called.

    Python calls it with numbers: integers are int64, floats float64 (numpy's float32 stays); and
    with a NamedTuple of integers (or of such groups).
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.function = function
        self.options = options
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self._inner: Any = None
        self._entries: dict[tuple[type, ...], Callable[..., Any]] = {}

    @property
    def compiled_function(self) -> Callable[..., Any]:
        return self.function

    @property
    def inner(self) -> Any:
        """The dispatcher for compiled callers."""
        if self._inner is None:
            with _lock:
                if self._inner is None:
                    numba: Any = importlib.import_module("numba")
                    linked = link(self.function)
                    self._inner = numba.njit(**{**OPTIONS, **self.options})(linked)
        return self._inner

    def __call__(self, *args: Any) -> Any:
        types = tuple(map(type, args))
        entry = self._entries.get(types)
        if entry is None:
            entry = self.entry(types)
        return entry(*args)

    def entry(self, types: tuple[type, ...]) -> Callable[..., Any]:
        """The function to call with arguments of these Python types; without the GIL."""
        if types not in self._entries:
            self._keep(types, load(self.function, _kinds(types, self.__name__), self.options))
        return self._entries[types]

    def load(self, *types: type) -> None:
        """Load it for arguments of these Python types, compiled if need be."""
        self.entry(types)

    def load_kept(self, *types: type) -> bool:
        """Load it if that needs no compiler; whether it is loaded now."""
        if types not in self._entries:
            kinds = _kinds(types, self.__name__)
            code = _read(self.function, kinds, self.options)
            if code is None:
                return False
            self._keep(types, store.Loaded(code, kinds))
        return True

    def _keep(self, types: tuple[type, ...], loaded: store.Loaded) -> None:
        call: Callable[..., Any] = loaded.call
        plain = all(t in (int, float) for t in types)
        self._entries[types] = call if plain else lambda *args: call(*_plain(args))


class ByType:
    """A function (or a constant, with no arguments) that depends on a tensor type named by a
    phantom argument."""

    def __init__(self, name: str, resolve: Callable[[str], Any], n_args: int) -> None:
        self.name, self.resolve, self.n_args = name, resolve, n_args
        self._stub: Any = None

    def found_for(self, label: str) -> Any:
        """What takes the place of this object where the phantom is `label`."""
        return self.resolve(label)

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
        self._made: dict[tuple[str, str], store.Loaded] = {}

    def load(self, a: str, b: str) -> None:
        """Load it for these tensor types, compiled if need be."""
        self.address(a, b)

    def load_kept(self, a: str, b: str) -> bool:
        """Load it if that needs no compiler; whether it is loaded now."""
        if (a, b) not in self._made:
            kinds = _kernel_kinds(a, b)
            code = _read(self.function, kinds, {})
            if code is None:
                return False
            self._made[a, b] = store.Loaded(code, kinds)
        return True

    def address(self, a: str = "", b: str = "") -> int:
        """The address of the kernel for types `a` and `b`, compiled (or read from the disk) if
        need be."""
        if (a, b) not in self._made:
            self._made[a, b] = load(self.function, _kernel_kinds(a, b), {})
        return self._made[a, b].address


def compiled(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorate a module-level function to be compiled at its first call. Options as
    numba.njit's."""
    if function is not None:
        return Compiled(function)
    return lambda f: Compiled(f, **options)


def load(
    function: Callable[..., Any], kinds: tuple[str, ...], options: dict[str, Any]
) -> store.Loaded:
    """The machine code of `function` for arguments of these kinds (see `build`), from the disk if
    it is there."""
    global n_built
    with _lock:
        code = _read(function, kinds, options)
        if code is None:
            maker: Any = importlib.import_module("llamapy.native.build")
            code = maker.build(link(function), kinds, options)
            if code is None:
                raise TypeError(f"{function.__name__} gives back something that is no number")
            n_built += 1
            store.write(*_place(function, kinds, options), code)
        return store.Loaded(code, kinds)


def _read(
    function: Callable[..., Any], kinds: tuple[str, ...], options: dict[str, Any]
) -> store.Code | None:
    return store.read(*_place(function, kinds, options))


def _place(
    function: Callable[..., Any], kinds: tuple[str, ...], options: dict[str, Any]
) -> tuple[str, str]:
    """Name and key of the code on disk."""
    module = function.__module__.removeprefix("llamapy.")
    labels = [kind[1:] for kind in kinds if kind.startswith("=") and kind != "="]
    name = ".".join([module, function.__name__, *labels])
    return name, sources.key(function, kinds, f"{store.host()} {sorted(options.items())}")


def _kernel_kinds(a: str, b: str) -> tuple[str, ...]:
    return ("i64", "i64", "i64", "i64", f"={a}", f"={b}")


def _kinds(types: tuple[type, ...], name: str) -> tuple[str, ...]:
    """What `build` calls these types of Python; a NamedTuple is a group of integers."""
    found = []
    for t in types:
        kind = _KINDS.get(t.__name__)
        if issubclass(t, tuple) and hasattr(t, "_fields"):
            kind = f"({_n_numbers(t)}){t.__module__}:{t.__qualname__}"
        elif kind is None and t.__module__ == "numpy" and t.__name__.startswith(("int", "uint")):
            kind = "i64"
        if kind is None:
            raise TypeError(f"{name} takes numbers, not {t.__name__}: pass the address of an array")
        found.append(kind)
    return tuple(found)


def _n_numbers(group: type) -> int:
    """How many integers a NamedTuple holds, with those of the groups in it."""
    fields = get_type_hints(group).values()
    return sum(1 if field is int else _n_numbers(field) for field in fields)


def _plain(arguments: tuple[Any, ...]) -> list[Any]:
    """Numbers as ctypes takes them: Python's own, those of groups in a row."""
    found: list[Any] = []
    for one in arguments:
        if isinstance(one, tuple):
            found += _plain(one)
        else:
            found.append(one.item() if hasattr(one, "item") else one)
    return found


def link(function: Callable[..., Any]) -> FunctionType:
    """A copy of `function` that sees real modules and dispatchers where it names lazy ones."""
    assert isinstance(function, FunctionType)
    space = dict(function.__globals__)
    names = sources.names_in(function.__code__)
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
