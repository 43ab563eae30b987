"""numba while `build` runs it: stacks are aligned, and what no kernel needs is not made.

numba prepares every function to be called from Python and from other processes' code: it optimizes
it by itself, makes machine code, wrappers and an environment of it, and tells listeners about each
step. Here only the entry is called, which contains all the others. A name that another version of
numba does not have is passed over: it may then be slower, but is right.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

ENTRY = "entry."  # how the library of an entry is named


@contextmanager
def for_kernels() -> Iterator[None]:
    """The changes, taken back at the end. One thread at a time (numba's compiler lock)."""
    from numba.core import codegen, cpu, event
    from numba.core.types import functions

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (codegen.JITCodeLibrary, "_finalize_specific", _nothing),
        (codegen.JITCPUCodegen, "_add_module", _nothing),
        (codegen.JITCPUCodegen, "set_env", _nothing),
        (cpu.CPUContext, "create_cpython_wrapper", _nothing),
        (cpu.CPUContext, "create_cfunc_wrapper", _nothing),
        (event, "start_event", _nothing),
        (event, "end_event", _nothing),
        (codegen.CPUCodeLibrary, "_optimize_final_module", _optimize_entry),
        (cpu.CPUContext, "declare_function", _declare_aligned),
        (functions.BaseFunction, "get_call_type", _remembered(functions.BaseFunction)),
    ]
    kept = [(owner, name, vars(owner).get(name)) for owner, name, _ in changes]
    collects = gc.isenabled()
    gc.disable()  # a tenth of the time: what is made here is kept, but searched again and again
    try:
        for owner, name, change in changes:
            if hasattr(owner, name):
                setattr(owner, name, change)
        yield
    finally:
        for owner, name, value in kept:
            if value is not None:
                setattr(owner, name, value)
            elif name in vars(owner):  # it was inherited
                delattr(owner, name)
        if collects:
            gc.enable()


def _nothing(*args: Any, **more: Any) -> None:
    """Takes the place of what is not needed."""


def _remembered(kind: Any) -> Callable[..., Any]:
    """Which overload a call with arguments of some types takes, looked for once and not at every
    plus sign: a tenth of the time."""
    search: Any = getattr(kind, "get_call_type", None)  # None: nothing will call what is made here

    def get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws:
            return search(function, context, args, kws)
        known = vars(function).setdefault("_known_calls", {})
        if (args, context) not in known:
            known[args, context] = search(function, context, args, kws)
        return known[args, context]

    return get_call_type


def _optimize_entry(library: Any) -> None:
    """All functions are optimized once, in the entry that contains them, not each time that one
    becomes a part of another."""
    if library.name.startswith(ENTRY):
        manager, builder = library._codegen._module_pass_manager()
        manager.run(library._final_module, builder)


def _declare_aligned(context: Any, module: Any, fndesc: Any) -> Any:
    """Functions start with a stack pointer that is a multiple of 32. A vector that finds no
    register lies there; by itself LLVM takes what it gets, a multiple of 16, and if that is an odd
    one, half of these loads and stores touch two cache lines: 20 % of a matrix product."""
    base: Any = importlib.import_module("numba.core.base")
    function = base.BaseContext.declare_function(context, module, fndesc)
    set.add(function.attributes, '"stackrealign"')  # not among the names that llvmlite knows
    return function
