"""Types that exist only for the compiler: a kernel gets the name of a tensor type as the type of a
dummy argument.

One kernel source then serves every quant type, each with its own entry in the disk cache, and
calls what belongs to
the type through functions made by `by_type`.
"""

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.core.typing import signature
from numba.core.typing.templates import AbstractTemplate, infer_global
from numba.extending import lower_builtin, register_model


class Phantom(types.Type):
    """Carries a name; its value is a word that nobody reads."""

    def __init__(self, label):
        self.label = label
        super().__init__(f"Phantom[{label}]")


@register_model(Phantom)
class _PhantomModel(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, ir.IntType(64))


def make_by_type(name, resolve, n_args):
    """A function f(phantom, a0, ...) that numba replaces by what resolve(label) gives: a constant
    or a function, which is called without one between."""

    def stub(w, *arguments):
        raise NotImplementedError

    stub.__name__ = stub.__qualname__ = name

    def found_for(w):
        found = resolve(w.label)
        return getattr(found, "inner", found)

    class Template(AbstractTemplate):
        key = stub

        def generic(self, args, kws):
            if kws or len(args) != n_args + 1 or not isinstance(args[0], Phantom):
                return None
            kind = self.context.resolve_value_type(found_for(args[0]))
            if n_args == 0:
                return signature(types.unliteral(kind), args[0])
            called = self.context.resolve_function_type(kind, args[1:], {})
            return called and signature(called.return_type, args[0], *called.args)

    infer_global(stub, types.Function(Template))

    @lower_builtin(stub, types.VarArg(types.Any))
    def lowered(context, builder, sig, args):
        found = found_for(sig.args[0])
        if n_args == 0:
            return context.get_constant_generic(builder, sig.return_type, found)
        kind = context.typing_context.resolve_value_type(found)
        function = context.get_function(kind, signature(sig.return_type, *sig.args[1:]))
        context.add_linking_libs(getattr(function, "libs", ()))
        return function(builder, args[1:])

    return stub
