"""Types that exist only for the compiler: a kernel gets the name of a tensor type as the type of a
dummy argument.

One kernel source then serves every quant type, each with its own entry in the disk cache, and
calls what belongs to
the type through functions made by `by_type`.
"""

from llvmlite import ir
from numba import types
from numba.core.datamodel import models
from numba.extending import overload, register_model


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
    or a function."""
    names = ", ".join(f"a{i}" for i in range(n_args))
    comma = ", " if n_args else ""
    space = {"resolve": resolve, "Phantom": Phantom}
    exec(
        f"def {name}(w{comma}{names}):\n    raise NotImplementedError\n"
        f"def typed(w{comma}{names}):\n"
        f"    if not isinstance(w, Phantom):\n        return None\n"
        f"    found = resolve(w.label)\n"
        f"    found = getattr(found, 'inner', found)\n"
        + (
            f"    def implementation(w, {names}):\n        return found({names})\n"
            if n_args
            else "    def implementation(w):\n        return found\n"
        )
        + "    return implementation\n",
        space,
    )
    overload(space[name], inline="never")(space["typed"])
    return space[name]
