"""The one door to numba: compiled functions, raw memory, atomics and SIMD. Nothing here loads
numba until it is used.

    from llamapy.native import compiled, mem

    @compiled                       # an njit function that is compiled, and cached on disk, at its
                                    first call
    def total(address, n):
        s = 0.0
        for i in range(n):
            s += mem.f32(address, i)
        return s

`mem` (loads and stores by address), `atomic` and `simd` are lazy modules: naming one in a compiled
function is
enough, the real module is put in its place when the function is compiled.
"""

from llamapy.native.jit import ByType, Compiled, Kernel, LazyModule, Macro, compiled


def level() -> str:
    """The SIMD level in use: amx, avx512, avx2, neon or generic."""
    from llamapy.native import levels

    return levels.level()


mem = LazyModule("llamapy.native.memory")
atomic = LazyModule("llamapy.native.atomics")
simd = LazyModule("llamapy.native.simd")
lanes = LazyModule("llamapy.native.lanes")

__all__ = [
    "ByType",
    "Compiled",
    "Kernel",
    "LazyModule",
    "Macro",
    "atomic",
    "compiled",
    "lanes",
    "level",
    "mem",
    "simd",
]
