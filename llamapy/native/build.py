"""Machine code made by numba: a Python function and its argument types in, an object file out.

The object holds one function `ENTRY` with C's calling convention, which calls what numba made; it
needs nothing of Python or numba at run time, so that a later process can load it without either
(see `store`). Only this module runs the compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, get_type_hints

from llamapy.native import numba_patches
from llamapy.native.jit import OPTIONS
from llamapy.native.store import ENTRY, Code


def build(
    function: Callable[..., Any], kinds: tuple[str, ...], options: dict[str, Any]
) -> Code | None:
    """Compile `function` (already linked) for arguments of these kinds; None if its code cannot
    stand alone.

    A kind is `i64`, `f64`, `f32`, `=label` for a phantom of that label, or `(n)module:name` for a
    NamedTuple of n integers.
    """
    import llvmlite.binding as llvm
    import numba
    from numba.core.compiler_lock import global_compiler_lock

    llvm.initialize_native_asmparser()  # for `simd.panel`
    with global_compiler_lock, numba_patches.for_kernels():
        dispatcher = numba.njit(**{**OPTIONS, **options})(function)
        types = tuple(_type(kind) for kind in kinds)
        dispatcher.compile(types)
        made = dispatcher.overloads[types]
        result = _result(made.signature.return_type)
        if result is None:
            return None
        library = dispatcher.targetctx.codegen().create_library(
            numba_patches.ENTRY + function.__name__
        )
        library.add_linking_library(made.library)
        library.add_ir_module(_entry(dispatcher.targetctx, made, result))
        library.finalize()
        final = library._final_module
        outside = [f.name for f in final.functions if f.is_declaration]
        outside = [name for name in outside if not name.startswith("llvm.")]
        if any(name.startswith(("NRT_", "numba_", "Py", "_Py")) for name in outside):
            return None
        return Code(library._codegen._tm.emit_object(final), result, tuple(sorted(outside)))


def _type(kind: str) -> Any:
    from numba import types

    if kind.startswith("="):
        phantom: Any = importlib.import_module("llamapy.native.phantom")
        return phantom.Phantom(kind[1:])
    if kind.startswith("("):
        module, _, name = kind.partition(")")[2].partition(":")
        return _group(getattr(importlib.import_module(module), name))
    return {"i64": types.int64, "f64": types.float64, "f32": types.float32}[kind]


def _group(group: type) -> Any:
    types: Any = importlib.import_module("numba.core.types")
    hints = get_type_hints(group).values()
    fields = [types.int64 if hint is int else _group(hint) for hint in hints]
    if all(field == fields[0] for field in fields):
        return types.NamedUniTuple(fields[0], len(fields), group)
    return types.NamedTuple(tuple(fields), group)


def _flat(context: Any, kind: Any) -> list[Any]:
    """LLVM's types of the numbers that an argument of this kind is passed as."""
    types: Any = importlib.import_module("numba.core.types")
    if isinstance(kind, types.BaseTuple):
        return [one for field in kind.types for one in _flat(context, field)]
    return [context.get_value_type(kind)]


def _take(context: Any, builder: Any, kind: Any, numbers: list[Any]) -> Any:
    """The argument made of the first of these numbers, which are taken out."""
    types: Any = importlib.import_module("numba.core.types")
    if isinstance(kind, types.BaseTuple):
        fields = [_take(context, builder, field, numbers) for field in kind.types]
        return context.make_tuple(builder, kind, fields)
    return numbers.pop(0)


def _result(kind: Any) -> str | None:
    """How the entry gives the result back; None if it cannot (tuples, arrays)."""
    from numba import types

    if isinstance(kind, types.NoneType):
        return "void"
    if isinstance(kind, types.Boolean | types.Integer):
        return "i64"
    return "f64" if isinstance(kind, types.Float) else None


def _entry(context: Any, made: Any, result: str) -> Any:
    """An IR module with the function that C calls."""
    from llvmlite import ir
    from numba import types

    module = context.create_module("entry")
    i64, f64 = ir.IntType(64), ir.DoubleType()
    arguments = [one for kind in made.fndesc.argtypes for one in _flat(context, kind)]
    returns = {"void": ir.VoidType(), "i64": i64, "f64": f64}[result]
    function = ir.Function(module, ir.FunctionType(returns, arguments), ENTRY)
    builder = ir.IRBuilder(function.append_basic_block())
    inner = ir.Function(
        module,
        context.call_conv.get_function_type(made.fndesc.restype, made.fndesc.argtypes),
        made.fndesc.llvm_func_name,
    )
    numbers = list(function.args)
    given = [_take(context, builder, kind, numbers) for kind in made.fndesc.argtypes]
    _, out = context.call_conv.call_function(
        builder, inner, made.fndesc.restype, made.fndesc.argtypes, given
    )
    if result == "void":
        builder.ret_void()
        return module
    if made.fndesc.restype == types.boolean:
        out = builder.zext(out, i64) if out.type.width < 64 else out
    elif result == "i64" and out.type.width < 64:
        out = (builder.sext if made.fndesc.restype.signed else builder.zext)(out, i64)
    elif result == "f64" and out.type != f64:
        out = builder.fpext(out, f64)
    builder.ret(out)
    return module
